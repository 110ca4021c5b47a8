"""Bytes on the move: a pull or a read into the memory, verified as it lands, until it ends or is given up.

Decides when more can be asked of a pull that is under way, and what an end is told as. It must not know what is
pulled from whom, or why; ``joining.py`` asks for it, and what a chunk's digest should be is told by ``truths.py``.
When a chunk is complete is decided in ``landing.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

import anyio

from coldstart import events
from coldstart.errors import ColdstartError, in_a_line
from coldstart.events import Event
from coldstart.landing import Landing
from coldstart.links.meter import Meter
from coldstart.plan import Chunks, spans_of
from coldstart.ports import Digester, Growing, Landed, Memory, Routing, Transport
from coldstart.telemetry import logger

Move = Callable[[Landed], Awaitable[None]]
"""Brings bytes, and returns when it is quiet; raises what ended it early."""
Expected = Callable[[int], bytes | None]
"""The digest that a chunk must have, if anybody knows it."""


class Asked:
    """One pull as the machine asked for it: from where, ``chunks`` altogether, of which those are left out whose
    digest nobody knows."""

    def __init__(self, transport: Transport, ticket: bytes, chunks: Chunks) -> None:
        self.transport, self.ticket, self.chunks = transport, ticket, chunks


class Moving:
    """What moves into one joiner's memory. ``post`` is told of what landed and what it was; it is set by assignment."""

    def __init__(self, memory: Memory, digester: Digester) -> None:
        self._memory, self._digester = memory, digester
        self.post: Callable[[Event], None] = lambda event: None
        self._under_way: dict[int, _UnderWay] = {}
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._abandoned: set[int] = set()
        self.digests: dict[int, bytes] = {}
        """Of what is in the memory, as far as it was not given up."""
        self.landed = 0
        """Bytes, of all attempts."""
        self.taken: Counter[int] = Counter()
        """Bytes that have come from each attempt's source."""

    def abandon(self, attempt: int) -> None:
        """End what this attempt moves, now or later."""
        self._abandoned.add(attempt)
        scope = self._scopes.get(attempt)
        if scope is not None:
            scope.cancel()

    async def joined(self, attempt: int, asked: Asked, chunks: Chunks) -> bool:
        """Have this attempt's pull that is under way bring ``chunks``, too; false when there is none.

        Where it is too late for that, its end is waited for: an attempt has one pull at a time.
        """
        while (under_way := self._under_way.get(attempt)) is not None:
            if under_way.grow(asked, chunks, self._memory):
                return True
            await under_way.over.wait()
        return False

    async def pull(
        self, attempt: int, asked: Asked, chunks: Chunks, move: Move, expected: Expected, meter: Meter
    ) -> events.PullEnded:
        """Bring ``chunks`` of what is ``asked`` for, and what is asked for meanwhile; returns how it ended."""
        landing = self._landing(attempt, chunks, expected, meter, from_source=True)
        under_way = self._under_way[attempt] = _UnderWay(asked, landing)
        try:
            reason, cancelled = await self._run(attempt, landing, move, meter)
        finally:
            del self._under_way[attempt]
            under_way.over.set()
        transport = asked.transport
        quiet = transport.traits.abortable or not cancelled
        route = transport.route if isinstance(transport, Routing) else ""
        return events.PullEnded(attempt, reason, quiet, route, chunks=under_way.chunks)

    async def read(
        self, attempt: int, chunks: Chunks, move: Move, expected: Expected | None, meter: Meter
    ) -> events.PullEnded:
        """Read ``chunks`` from storage. Without ``expected`` digests, those that come of it are right."""
        reason, _ = await self._run(attempt, self._landing(attempt, chunks, expected, meter), move, meter)
        return events.PullEnded(attempt, reason)

    def _landing(
        self, attempt: int, chunks: Chunks, expected: Expected | None, meter: Meter, *, from_source: bool = False
    ) -> Landing:
        def on_bytes(nbytes: int) -> None:
            self.landed += nbytes
            if from_source:
                self.taken[attempt] += nbytes
            self.post(events.BytesLanded(attempt, nbytes))

        async def on_chunk(chunk: int, digest: bytes) -> None:
            right = expected is not None and expected(chunk) == digest
            if right or attempt not in self._abandoned:  # nobody knows what a late writer's chunk is worth
                self.digests[chunk] = digest
            if right or expected is None:
                self.post(events.ChunkVerified(attempt, chunk))
            else:
                meter.doubted = True
                self.post(events.ChunkCorrupted(attempt, chunk))

        return Landing(self._memory, self._digester, chunks, on_bytes, on_chunk)

    async def _run(self, attempt: int, landing: Landing, move: Move, meter: Meter) -> tuple[str, bool]:
        """Move bytes and verify chunks side by side; returns why it ended early, and whether it was cancelled."""
        broken: list[str] = []

        async def verify() -> None:
            await meter.probed()
            try:
                await landing.verify()
            except Exception as error:  # a digester may raise anything
                logger().error("digest broke", error=repr(error))
                broken.append(f"digest broke: {reason_of(error)}")
                self.abandon(attempt)

        reason = "abandoned"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(verify)
            with anyio.CancelScope() as scope:
                self._scopes[attempt] = scope
                if attempt in self._abandoned:
                    scope.cancel()
                reason = await _outcome(move, landing.landed)
            del self._scopes[attempt]
            meter.end()
            await landing.settle()
        return broken[0] if broken else reason, scope.cancelled_caught


class _UnderWay:
    """A pull that has not ended: ``chunks`` were asked for so far; ``over`` when nothing of it moves any more."""

    def __init__(self, asked: Asked, landing: Landing) -> None:
        self._transport, self._ticket, self._landing = asked.transport, asked.ticket, landing
        self.chunks = asked.chunks
        self.over = anyio.Event()

    def grow(self, asked: Asked, chunks: Chunks, memory: Memory) -> bool:
        """Bring ``chunks``, too; false where it is too late for that."""
        if not isinstance(self._transport, Growing):
            return False
        if chunks and not self._transport.extend(self._ticket, spans_of(memory.layout, chunks)):
            return False
        self._landing.expect(chunks)
        self.chunks |= asked.chunks
        return True


async def _outcome(move: Move, landed: Landed) -> str:
    """Move the bytes; returns why it ended, or nothing."""
    try:
        await move(landed)
    except ColdstartError as error:
        return reason_of(error)
    except Exception as error:  # a transport may raise anything
        logger().error("transport broke", error=repr(error))
        return reason_of(error)
    return ""


def reason_of(error: Exception) -> str:
    """What happened, in one line; a group of one is what is in it."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return str(error) if isinstance(error, ColdstartError) else in_a_line(error)
