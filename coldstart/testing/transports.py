"""A transport inside one process, and wrappers that make any transport fail in one chosen way.

:class:`LoopbackTransport` is the reference: it keeps the transports' contract with nothing but
the two memories and the event loop, so it runs in virtual time. The wrappers delegate to the
transport they are given and decide only when and how it breaks; each names one fault. They may
be stacked. What a joiner must make of each fault is in the tests of ``joining.py``.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import anyio
import anyio.lowlevel
from msgspec.structs import replace

from coldstart.errors import TransportError
from coldstart.layout import Span
from coldstart.ports import Grant, Landed, Memory, Traits, Transport

STEP = 256 * 1024


class _Lent:
    """One offer of one memory."""

    def __init__(self, grant: Grant, memory: Memory) -> None:
        self.transfer, self.memory = grant.transfer, memory
        self.until = anyio.current_time() + grant.seconds
        self.revoked = False

    @property
    def open(self) -> bool:
        return not self.revoked and anyio.current_time() < self.until


class Loopback:
    """What the loopback transports of one fleet share: who offers what, by ticket."""

    def __init__(self) -> None:
        self.offers: dict[bytes, _Lent] = {}
        self.pulled: list[bytes] = []


class LoopbackTransport:
    """Copies from memory to memory in this process; nothing is read in the source's absence.

    Args:
        hub: shared with the peers.
        bytes_per_second: how fast it copies, 0 for as fast as it can.
        step: bytes that it moves, and reports, at a time.
    """

    traits = Traits(
        one_sided=True, needs_peer=True, abortable=True, device_kinds=("cpu",), link="memory", sees_readers=True
    )

    def __init__(
        self, hub: Loopback, bytes_per_second: float = 0.0, step: int = STEP, name: str = "loopback"
    ) -> None:
        self.name = name
        self._hub, self._rate, self._step = hub, bytes_per_second, step
        self._mine: set[bytes] = set()
        self._under_way: dict[bytes, deque[Span]] = {}
        self._closed = False

    async def offer(self, grant: Grant, memory: Memory) -> bytes:
        """See :meth:`coldstart.ports.Transport.offer`."""
        await anyio.lowlevel.checkpoint()
        self._check()
        ticket = secrets.token_bytes(16)
        self._hub.offers[ticket] = _Lent(grant, memory)
        self._mine.add(ticket)
        return ticket

    async def revoke(self, transfer: str) -> None:
        """See :meth:`coldstart.ports.Transport.revoke`; no copy is under way between two turns of the loop."""
        await anyio.lowlevel.checkpoint()
        for ticket in [ticket for ticket in self._mine if self._hub.offers[ticket].transfer == transfer]:
            self._end(ticket)

    def reading(self, transfer: str) -> bool:
        """See :meth:`coldstart.ports.Transport.reading`."""
        pulled = self._mine.intersection(self._hub.pulled)
        return any(self._hub.offers[ticket].transfer == transfer for ticket in pulled)

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        """See :meth:`coldstart.ports.Transport.pull`."""
        self._hub.pulled.append(ticket)
        rest = self._under_way[ticket] = deque(spans)
        try:
            while rest:
                await self._pull(ticket, (rest.popleft(),), into, landed)
        finally:
            self._hub.pulled.remove(ticket)
            if self._under_way.get(ticket) is rest:
                del self._under_way[ticket]

    def extend(self, ticket: bytes, spans: Sequence[Span]) -> bool:
        """See :meth:`coldstart.ports.Growing.extend`."""
        rest = self._under_way.get(ticket)
        if rest is None:
            return False
        rest.extend(spans)
        return True

    async def _pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        for span in _steps(spans, self._step):
            await anyio.sleep(span.length / self._rate) if self._rate else await anyio.lowlevel.checkpoint()
            self._check()
            lent = self._hub.offers.get(ticket)
            if lent is None or not lent.open:
                raise TransportError("the offer is over", reason="refused" if lent is None else "revoked")
            _copy(lent.memory, into, span)
            landed(span)

    async def aclose(self) -> None:
        """End all offers."""
        self._closed = True
        for ticket in list(self._mine):
            self._end(ticket)
        await anyio.lowlevel.checkpoint()

    def _end(self, ticket: bytes) -> None:
        self._mine.discard(ticket)
        self._hub.offers.pop(ticket).revoked = True

    def _check(self) -> None:
        if self._closed:
            raise TransportError("the transport is closed", reason="closed")


def _steps(spans: Sequence[Span], step: int) -> Iterator[Span]:
    for span in spans:
        for offset in range(span.offset, span.end, step):
            yield Span(offset, min(step, span.end - offset))


def _copy(source: Memory, target: Memory, span: Span) -> None:
    """Bytes of weights only: padding need not exist on either side."""
    if span.end > source.layout.nbytes:
        raise TransportError(f"the source has no bytes at {span.offset}", reason="refused")
    for piece in target.layout.pieces(span):
        part = Span(piece.offset, piece.length)
        with source.reading(part) as views, target.writing(part) as targets:
            data = memoryview(b"".join(views))
            for view in targets:
                view[:], data = data[: len(view)], data[len(view) :]


# ------------------------------------------------------------------------------------------ faults


class Wrapped:
    """A transport that passes everything on; the base of all faults."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def traits(self) -> Traits:
        return self.inner.traits

    async def offer(self, grant: Grant, memory: Memory) -> bytes:
        return await self.inner.offer(grant, memory)

    async def revoke(self, transfer: str) -> None:
        await self.inner.revoke(transfer)

    def reading(self, transfer: str) -> bool:
        return self.inner.reading(transfer)

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        await self.inner.pull(ticket, spans, into, landed)

    async def aclose(self) -> None:
        await self.inner.aclose()


class Delayed(Wrapped):
    """Offers and pulls begin so many seconds late."""

    def __init__(self, inner: Transport, *, offer: float = 0.0, pull: float = 0.0) -> None:
        super().__init__(inner)
        self._offer, self._pull = offer, pull

    async def offer(self, grant: Grant, memory: Memory) -> bytes:
        await anyio.sleep(self._offer)
        return await super().offer(grant, memory)

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        await anyio.sleep(self._pull)
        await super().pull(ticket, spans, into, landed)


class Stalling(Wrapped):
    """After ``nbytes`` nothing more comes, and no error either."""

    def __init__(self, inner: Transport, nbytes: int = 0) -> None:
        super().__init__(inner)
        self._nbytes = nbytes

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        await super().pull(ticket, first(spans, self._nbytes), into, landed)
        await anyio.sleep_forever()


class Breaking(Wrapped):
    """After ``nbytes`` the pull raises ``error``, by default what a closed connection is."""

    def __init__(self, inner: Transport, nbytes: int = 0, error: Exception | None = None) -> None:
        super().__init__(inner)
        self._nbytes = nbytes
        self._error = error or TransportError("the connection is gone", reason="closed")

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        await super().pull(ticket, first(spans, self._nbytes), into, landed)
        raise self._error


class Short(Wrapped):
    """After ``nbytes`` the pull returns as if that were all."""

    def __init__(self, inner: Transport, nbytes: int = 0) -> None:
        super().__init__(inner)
        self._nbytes = nbytes

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        await super().pull(ticket, first(spans, self._nbytes), into, landed)


class Corrupting(Wrapped):
    """One bit of chunk ``chunk`` arrives wrong."""

    def __init__(self, inner: Transport, chunk: int) -> None:
        super().__init__(inner)
        self._chunk = chunk

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        victim = next(into.layout.pieces(into.layout.chunk(self._chunk))).offset

        def tampered(span: Span) -> None:
            if span.offset <= victim < span.end:
                with into.writing(Span(victim, 1)) as views:
                    views[0][0] ^= 1
            landed(span)

        await super().pull(ticket, spans, into, tampered)


class Lying(Wrapped):
    """Success without a write, as one-sided reads from a dead peer were measured to report."""

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        for span in spans:
            await anyio.lowlevel.checkpoint()
            landed(span)


class Repeating(Wrapped):
    """Everything that lands is reported twice, in between in halves, and once more after the end."""

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        seen: list[Span] = []

        def again(span: Span) -> None:
            half = span.length // 2
            for part in (span, Span(span.offset, half), Span(span.offset + half, span.length - half), span):
                landed(part)
            seen.append(span)

        await super().pull(ticket, spans, into, again)
        loop = asyncio.get_running_loop()
        for span, delay in itertools.product(seen, (0.0, 0.5)):
            loop.call_later(delay, landed, span)


class WritingLate(Stalling):
    """Stalls after ``nbytes``, and can write after its cancelled pull has returned: not abortable."""

    def __init__(self, inner: Transport, nbytes: int = 0) -> None:
        super().__init__(inner, nbytes)
        self._held = ExitStack()
        self._views: list[memoryview] = []

    @property
    def traits(self) -> Traits:
        return replace(super().traits, abortable=False)

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        for span in spans:
            self._views.extend(self._held.enter_context(into.writing(span)))
        await super().pull(ticket, spans, into, landed)

    def write_late(self) -> int:
        """Scribble over everything that was ever asked for; returns the number of bytes written."""
        for view in self._views:
            view[:] = b"\xee" * len(view)
        return sum(map(len, self._views))


class Deaf(WritingLate):
    """A pull that stalls and cannot even be cancelled: it returns only when :attr:`woken` is set."""

    def __init__(self, inner: Transport, nbytes: int = 0) -> None:
        super().__init__(inner, nbytes)
        self.woken = anyio.Event()

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        try:
            await super().pull(ticket, spans, into, landed)
        finally:
            with anyio.CancelScope(shield=True):
                await self.woken.wait()


class LeavingBehind(Wrapped):
    """A cancelled pull returns at once, and its bytes go on arriving; yet the traits say what those of ``inner`` say.

    Where ``inner`` is abortable, that is the lie which the contract suite is there to find.
    """

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self._left: set[asyncio.Task[None]] = set()

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        task = asyncio.create_task(super().pull(ticket, spans, into, landed))
        self._left.add(task)
        await asyncio.shield(task)

    async def aclose(self) -> None:
        """What was left behind ends here."""
        for task in self._left:
            task.cancel()
        await asyncio.gather(*self._left, return_exceptions=True)
        await super().aclose()


class Dialling(Wrapped):
    """A transport that connects before the first byte; :attr:`log` has what was done, :attr:`up` what stands.

    Args:
        seconds: what setting up takes.
        error: what it ends with.
    """

    def __init__(self, inner: Transport, seconds: float = 0.1, error: Exception | None = None) -> None:
        super().__init__(inner)
        self._seconds, self._error = seconds, error
        self.up: set[bytes] = set()
        self.log: list[str] = []

    async def connect(self, ticket: bytes, into: Memory) -> None:
        """See :meth:`coldstart.ports.Connecting.connect`."""
        self.log.append("connecting")
        try:
            await anyio.sleep(self._seconds)
        except BaseException:
            self.log.append("given up")
            raise
        if self._error is not None:
            raise self._error
        self.up.add(ticket)
        self.log.append("connected")

    async def disconnect(self, ticket: bytes) -> None:
        """See :meth:`coldstart.ports.Connecting.disconnect`."""
        await anyio.lowlevel.checkpoint()
        self.up.discard(ticket)
        self.log.append("disconnected")

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        self.log.append("pull" if ticket in self.up else "pull by itself")
        await super().pull(ticket, spans, into, landed)


class Unoffering(Wrapped):
    """The source's side cannot open its memory."""

    async def offer(self, grant: Grant, memory: Memory) -> bytes:
        raise TransportError("no room for another registration", reason="exhausted")


def first(spans: Sequence[Span], nbytes: int) -> list[Span]:
    """The first ``nbytes`` of ``spans``."""
    result: list[Span] = []
    for span in spans:
        if nbytes <= 0:
            break
        result.append(Span(span.offset, min(span.length, nbytes)))
        nbytes -= span.length
    return result
