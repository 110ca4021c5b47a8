"""A pull that is asked for more while it is under way: joined in time, followed by another one where it is too late."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from coldstart import events
from coldstart.errors import TransportError
from coldstart.layout import Span
from coldstart.links.meter import Meter
from coldstart.moving import Asked, Moving
from coldstart.plan import Chunks, spans_of
from coldstart.ports import Grant, Landed, Memory, Transport
from coldstart.testing.harness import CHUNK, LAYOUT, HashDigester
from coldstart.testing.memories import BytesMemory
from coldstart.testing.transports import Loopback, LoopbackTransport, Wrapped
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime

GRANT = Grant(transfer="t", joiner="j", fence=1, seconds=600.0)
FIRST, SECOND, THIRD = Chunks.of([0]), Chunks.of([1, 2]), Chunks.of([3])


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


class Joiner:
    """Pulls chunks from memory that holds everything, one chunk a second, and keeps what it is told."""

    def __init__(self, wrap: type[Wrapped] | None = None) -> None:
        self.held, self.target = BytesMemory(LAYOUT, seed=1), BytesMemory(LAYOUT, fill=0xAA)
        inner = LoopbackTransport(Loopback(), CHUNK, step=CHUNK)
        self.transport: Transport = inner if wrap is None else wrap(inner)
        self.told: list[events.Event] = []
        self.moving = Moving(self.target, HashDigester())
        self.moving.post = self.told.append
        self.ticket = b""
        self.begun: list[tuple[Span, ...]] = []
        self.known = Chunks.first(LAYOUT.chunks)

    def expected(self, chunk: int) -> bytes | None:
        return HashDigester().digest(self.held, LAYOUT.chunk(chunk)) if chunk in self.known else None

    async def ask(self, asked: Chunks, attempt: int = 1) -> None:
        """As ``joining`` does it."""
        self.ticket = self.ticket or await self.transport.offer(GRANT, self.held)
        chunks = asked & self.known
        if await self.moving.joined(attempt, Asked(self.transport, self.ticket, asked), chunks):
            return
        spans = spans_of(LAYOUT, chunks)
        self.begun.append(spans)

        async def move(landed: Landed) -> None:
            await self.transport.pull(self.ticket, spans, self.target, landed)

        asking = Asked(self.transport, self.ticket, asked)
        self.told.append(await self.moving.pull(attempt, asking, chunks, move, self.expected, Meter()))

    @property
    def ends(self) -> list[tuple[Chunks | None, str]]:
        return [(event.chunks, event.reason) for event in self.told if isinstance(event, events.PullEnded)]

    @property
    def verified(self) -> list[int]:
        return [event.chunk for event in self.told if isinstance(event, events.ChunkVerified)]


async def play(joiner: Joiner, *asked: tuple[float, Chunks]) -> None:
    """Ask for each at its moment, and wait for all ends."""

    async def later(seconds: float, chunks: Chunks) -> None:
        await anyio.sleep(seconds)
        await joiner.ask(chunks)

    async with anyio.create_task_group() as tasks:
        for seconds, chunks in asked:
            tasks.start_soon(later, seconds, chunks)


async def test_what_is_asked_for_in_time_joins_the_pull_and_ends_with_it() -> None:
    joiner, began = Joiner(), anyio.current_time()
    await play(joiner, (0.0, FIRST), (0.5, SECOND), (2.5, THIRD))
    assert joiner.begun == [spans_of(LAYOUT, FIRST)]
    assert joiner.verified == [0, 1, 2, 3]
    assert joiner.ends == [(FIRST | SECOND | THIRD, "")]
    assert anyio.current_time() - began == pytest.approx(4.0, abs=0.1), "the link never waits"


async def test_what_is_asked_for_too_late_is_a_pull_of_its_own() -> None:
    joiner = Joiner()
    await play(joiner, (0.0, FIRST), (1.5, SECOND))
    assert joiner.begun == [spans_of(LAYOUT, FIRST), spans_of(LAYOUT, SECOND)]
    assert joiner.ends == [(FIRST, ""), (SECOND, "")]


async def test_a_transport_that_cannot_grow_is_asked_when_it_has_ended() -> None:
    joiner = Joiner(Wrapped)
    await play(joiner, (0.0, FIRST), (0.5, SECOND), (0.6, THIRD))
    assert joiner.begun == [spans_of(LAYOUT, each) for each in (FIRST, SECOND, THIRD)]
    assert joiner.ends == [(FIRST, ""), (SECOND, ""), (THIRD, "")]


async def test_chunks_without_a_digest_are_left_out_and_end_with_the_rest() -> None:
    joiner = Joiner()
    joiner.known = FIRST | THIRD
    await play(joiner, (0.0, FIRST), (0.5, SECOND), (0.6, THIRD))
    assert joiner.verified == [0, 3]
    assert joiner.ends == [(FIRST | SECOND | THIRD, "")]


async def test_a_failure_is_that_of_all_that_was_asked_for() -> None:
    class Broken(LoopbackTransport):
        async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
            with anyio.move_on_after(1.5):
                await super().pull(ticket, spans, into, landed)
            raise TransportError("closed by the peer", reason="closed")

    joiner = Joiner()
    joiner.transport = Broken(Loopback(), CHUNK, step=CHUNK)
    await play(joiner, (0.0, FIRST), (0.5, SECOND))
    assert joiner.verified == [0]
    [(chunks, reason)] = joiner.ends
    assert (chunks, reason) == (FIRST | SECOND, "closed by the peer")


async def test_abandoning_ends_all_of_it_and_what_is_asked_for_after_it() -> None:
    joiner = Joiner()

    async def abandon() -> None:
        await anyio.sleep(1.5)
        joiner.moving.abandon(1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(abandon)
        await play(joiner, (0.0, FIRST), (0.5, SECOND), (1.6, THIRD))
    assert joiner.ends == [(FIRST | SECOND, "abandoned"), (THIRD, "abandoned")]
    assert joiner.verified == [0]
    assert joiner.target.content(LAYOUT.chunk(1)) != joiner.held.content(LAYOUT.chunk(1)), "nothing lands any more"


async def test_attempts_have_nothing_to_do_with_each_other() -> None:
    joiner = Joiner()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(joiner.ask, FIRST, 1)
        await anyio.sleep(0.5)
        tasks.start_soon(joiner.ask, SECOND, -1)
    assert len(joiner.begun) == 2


async def test_what_a_pull_that_was_given_up_wrote_is_never_taken_for_what_is_here() -> None:
    """The chunk has come right from elsewhere meanwhile; a late writer's digest says nothing of it."""
    joiner = Joiner()
    await joiner.ask(FIRST)
    right = dict(joiner.moving.digests)

    async def late(landed: Landed) -> None:
        joiner.moving.abandon(7)
        with joiner.target.writing(Span(0, 1)) as views:
            views[0][0] ^= 1
        landed(LAYOUT.chunk(0))

    asked = Asked(joiner.transport, joiner.ticket, FIRST)
    await joiner.moving.pull(7, asked, FIRST, late, joiner.expected, Meter())
    assert events.ChunkCorrupted(7, 0) in joiner.told
    assert joiner.moving.digests == right
