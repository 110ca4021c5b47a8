"""One worker of a storm: a member of the fleet whose transport, digester and self-check can go wrong.

Decides how a fault looks to the hands, not when it comes (``faults.py``) nor what may come of it
(``promises.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from random import Random

from msgspec.structs import replace

from coldstart.layout import Span
from coldstart.phases.states import Draining, Failed, Gone, Serving
from coldstart.ports import Grant, Landed, Memory, Traits, Transport
from coldstart.source import Mode
from coldstart.testing.chaos.line import Line
from coldstart.testing.harness import LAYOUT, FakeStorage, HashDigester, Member, Wrap, fill
from coldstart.testing.transports import (
    Breaking,
    Corrupting,
    Deaf,
    Delayed,
    Lying,
    Repeating,
    Short,
    Stalling,
    Unoffering,
    Wrapped,
    WritingLate,
)

Draw = Callable[[Random], Wrap]

WRAPS: Mapping[str, Draw] = {
    "stalling": lambda luck: _some(Stalling, luck),
    "breaking": lambda luck: _some(Breaking, luck),
    "short": lambda luck: _some(Short, luck),
    "corrupting": lambda luck: _corrupting(luck.randrange(LAYOUT.chunks)),
    "lying": lambda luck: Lying,
    "repeating": lambda luck: Repeating,
    "unoffering": lambda luck: Unoffering,
    "delayed": lambda luck: _delayed(luck.uniform(0, 4), luck.uniform(0, 4)),
}
"""Faults of a transport that stops writing when it is told to, by name."""

LATE: Mapping[str, Draw] = {
    "writing late": lambda luck: _some(WritingLate, luck),
    "deaf": lambda luck: _some(Deaf, luck),
}
"""Faults of one that does not."""

LATEST = 12.0
"""Seconds after which even the deaf hear and late writers have written."""


class Switched(Wrapped):
    """A transport whose fault can be changed: offers and pulls have that of their beginning.

    Args:
        luck: of when late writers write and the deaf wake up.
        late: it will be given faults of :data:`LATE`.
    """

    def __init__(self, inner: Transport, luck: Random, *, late: bool) -> None:
        super().__init__(inner)
        self.fault: Wrap = _sound
        self._luck, self._late = luck, late
        self._deaf: list[Deaf] = []
        self._writers: list[WritingLate] = []
        """Those that were abandoned."""
        self.offered: set[str] = set()
        """Transfers for which memory is open here."""

    @property
    def traits(self) -> Traits:
        return replace(self.inner.traits, abortable=False) if self._late else self.inner.traits

    async def offer(self, grant: Grant, memory: Memory) -> bytes:
        ticket = await self.fault(self.inner).offer(grant, memory)
        self.offered.add(grant.transfer)
        return ticket

    async def revoke(self, transfer: str) -> None:
        await super().revoke(transfer)
        self.offered.discard(transfer)

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        faulty = self.fault(self.inner)
        if isinstance(faulty, Deaf):
            self._deaf.append(faulty)
            self._later(faulty.woken.set)
        try:
            await faulty.pull(ticket, spans, into, landed)
        except asyncio.CancelledError:
            if isinstance(faulty, WritingLate):
                self._writers.append(faulty)
                self._later(faulty.write_late)
            raise

    def write_late(self) -> None:
        """Whoever was abandoned, the deaf included, writes now."""
        for writer in (*self._writers, *self._deaf):
            writer.write_late()

    def mend(self) -> None:
        """Be sound from now on."""
        self.fault = _sound

    def wake(self) -> None:
        """Nothing is deaf any more."""
        for deaf in self._deaf:
            deaf.woken.set()

    def _later(self, call: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_later(self._luck.uniform(0, LATEST), call)


class Moody(HashDigester):
    """A digester that raises for some chunks."""

    def __init__(self) -> None:
        self.raises: frozenset[int] = frozenset()
        self.broke = False
        """Whether it ever has."""

    def digest(self, memory: Memory, span: Span) -> bytes:
        if span.offset // memory.layout.chunk_bytes in self.raises:
            self.broke = True
            raise RuntimeError("the kernel did not launch")
        return super().digest(memory, span)


class Subject:
    """A member, with what befell it.

    ``spoilt``: its memory was changed on purpose; ``changed``: by its host, which said so.
    ``broken``: why it may fail; empty if it may not.
    """

    def __init__(self, began: float, storage: FakeStorage, digester: Moody) -> None:
        self.began, self.storage, self.digester = began, storage, digester
        self.member: Member
        self.switched: Switched
        self.line: Line | None = None
        self.alive = True
        self.spoilt = self.changed = False
        self.unfit = self.unreplaceable = False
        self.hasty = False
        """Whether late writers write at the worst moment: just before what is kept is copied."""
        self.late = False
        self.broken = ""
        self.excused = 0.0
        self.wronged: set[str] = set()
        """Inboxes of those that gave it wrong bytes."""

    def self_check(self) -> Sequence[str]:
        return ("the module is not right",) if self.unfit else ()

    def replace_memory(self, keep: Sequence[Span]) -> None:
        if self.unreplaceable:
            raise MemoryError("no memory of this size")
        if self.hasty:
            self.switched.write_late()
        self.member.memory.quarantine(keep)

    @property
    def name(self) -> str:
        return self.member.name

    @property
    def starts(self) -> bool:
        """Whether its cold start goes on."""
        return self.alive and not isinstance(self.member.joiner.state, Serving | Draining | Failed | Gone)

    @property
    def serves(self) -> bool:
        return self.alive and isinstance(self.member.joiner.state, Serving | Draining)

    @property
    def right(self) -> bool:
        """Whether its memory is what storage holds."""
        return self.member.content == self.storage.held.content()

    @property
    def lends(self) -> bool:
        """Whether all its weights can be had from it, by its own word."""
        return self.serves and self.line is not None and self.member.source.state.mode is Mode.OPEN

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong with it that would keep it from lending for good."""
        return self.serves and self.right and not self.digester.broke

    def mend(self) -> None:
        """End what is wrong with it, but for its memory and what has been done already."""
        self.switched.mend()
        self.switched.wake()
        self.digester.raises = frozenset()
        if self.line is not None:
            self.line.troubles = {}

    async def die(self) -> None:
        """End as by ``kill -9``; the deaf wake up, for memory of a dead process is written by nobody."""
        self.alive = False
        self.switched.wake()
        await self.member.kill()

    def scribble(self, chunk: int | None = None) -> None:
        """Change a byte of a chunk of its memory, or of all of them."""
        layout = self.member.memory.layout
        for number in range(layout.chunks) if chunk is None else (chunk,):
            victim = next(layout.pieces(layout.chunk(number))).offset
            with self.member.memory.writing(Span(victim, 1)) as views:
                views[0][0] ^= 0x55

    def restore(self) -> None:
        """Bring its memory back to what storage holds."""
        whole = Span(0, self.member.memory.layout.nbytes)
        with self.member.memory.writing(whole) as views:
            fill(views, self.storage.held.content())
        self.spoilt = self.changed = False


def _sound(inner: Transport) -> Transport:
    return inner


def _some(kind: Callable[[Transport, int], Transport], luck: Random) -> Wrap:
    nbytes = luck.randrange(LAYOUT.nbytes)
    return lambda inner: kind(inner, nbytes)


def _corrupting(chunk: int) -> Wrap:
    return lambda inner: Corrupting(inner, chunk)


def _delayed(offer: float, pull: float) -> Wrap:
    return lambda inner: Delayed(inner, offer=offer, pull=pull)
