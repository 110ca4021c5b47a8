"""A source's look at its own weights: in which order, of which chunks, and what it is worth."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

import anyio
import anyio.to_thread
import pytest

from coldstart import events
from coldstart.glance import Glance
from coldstart.inspecting import Inspector
from coldstart.layout import Span
from coldstart.plan import Chunks
from coldstart.ports import Memory
from coldstart.station import Station, Worker
from coldstart.testing.harness import LAYOUT, LINEAGE, SHARD, HashDigester
from coldstart.testing.memories import BytesMemory
from coldstart.truths import Truths

EVERYTHING = range(LAYOUT.chunks)


class Scripted:
    """A watch that sees what it is told to see."""

    def __init__(self, glance: Glance) -> None:
        self.glance = glance
        self.proven_with: list[Glance] = []

    def look(self) -> Glance:
        return self.glance

    def proven(self, glance: Glance) -> None:
        self.proven_with.append(glance)


class Noting(HashDigester):
    """Notes what it digests, after something else has happened."""

    def __init__(self, first: Callable[[], None] = lambda: None) -> None:
        self.digested: list[int] = []
        self._first = first

    def digest(self, memory: Memory, span: Span) -> bytes:
        self._first()
        self.digested.append(span.offset // LAYOUT.chunk_bytes)
        return super().digest(memory, span)


class Broken(HashDigester):
    def digest(self, memory: Memory, span: Span) -> bytes:
        raise MemoryError("device full")


def inspector(
    glance: Glance, digester: HashDigester, *, wrong: int = -1, whole: bool = True
) -> tuple[Inspector, Scripted]:
    """Of memory in which the chunk ``wrong`` is not the truth."""
    memory, watch = BytesMemory(LAYOUT, seed=1), Scripted(glance)
    truths = Truths(Station(SHARD, LINEAGE, Worker("a", "1"), None, "no store", Random(1)), LAYOUT, "blake2b")
    digests = [HashDigester().digest(memory, LAYOUT.chunk(chunk)) for chunk in EVERYTHING]
    truths.make([bytes(16) if chunk == wrong else digest for chunk, digest in enumerate(digests)])
    made = Inspector(memory, truths, digester, watch)
    made.advertised(1, whole=whole)
    return made, watch


WRITTEN = Glance("", {"t3": 2}, (3, 5))


async def test_a_turn_digests_what_is_due_and_what_was_written_to_and_then_vouches_for_both() -> None:
    digester = Noting()
    ours, watch = inspector(WRITTEN, digester)
    turn = await ours.scrub(1, Chunks.of([4]))
    assert isinstance(turn, events.Scrubbed)
    assert (turn.generation, turn.chunks) == (1, Chunks.of([4]))
    assert turn.seconds > 0
    assert (digester.digested, watch.proven_with) == ([3, 4, 5], [WRITTEN])
    assert not ours.reading


async def test_memory_that_has_moved_is_not_read() -> None:
    digester = Noting()
    ours, watch = inspector(Glance("a.weight was freed"), digester)
    for found in (await ours.scrub(1, Chunks.of([0])), await ours.inspect(1, None), await ours.before_offer(1)):
        assert found == events.WeightsMoved(1, "a.weight was freed")
    assert (digester.digested, watch.proven_with) == ([], [])


@pytest.mark.parametrize(
    ("written", "named"), [({"t3": 2}, "t3"), ({}, "t0, t1, t2 and 1 more")], ids=["known", "not known"]
)
async def test_a_wrong_chunk_is_described_by_what_lies_in_it(written: dict[str, int], named: str) -> None:
    ours, watch = inspector(Glance("", written), Noting(), wrong=2)
    damaged = events.WeightsDamaged(1, 2, f"chunk 2 ({named}) is not what was verified")
    assert await ours.scrub(1, Chunks.of([2])) == damaged
    assert watch.proven_with == []


async def test_while_weights_arrive_only_digests_count() -> None:
    """Their memory is replaced, and written to, for good reason."""
    digester = Noting()
    ours, watch = inspector(Glance("a.weight has other memory"), digester, whole=False)
    assert await ours.before_offer(1) is None
    assert await ours.inspect(1, Chunks.of([2])) == events.WeightsProven(1)
    assert (digester.digested, watch.proven_with) == ([2], [])


async def test_what_a_change_has_overtaken_ends_after_the_digest_in_hand() -> None:
    digester = Noting(lambda: ours.advertised(2, whole=True))
    ours, watch = inspector(Glance(), digester)
    await ours.inspect(1, None)
    assert (digester.digested, watch.proven_with) == ([0], [])
    await ours.inspect(1, None)
    assert digester.digested == [0]


async def test_who_leaves_waits_for_the_digest_in_hand_and_begins_none() -> None:
    """The host may free the memory then."""
    reading, go = threading.Event(), threading.Event()

    def hold_up() -> None:
        reading.set()
        assert go.wait(10)

    digester = Noting(hold_up)
    ours, _ = inspector(Glance(), digester)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ours.inspect, 1, None)
        assert await anyio.to_thread.run_sync(reading.wait, 10)
        left = anyio.Event()

        async def leave() -> None:
            await ours.leave()
            left.set()

        tasks.start_soon(leave)
        await anyio.wait_all_tasks_blocked()
        assert (ours.reading, left.is_set()) == (True, False)
        go.set()
        await left.wait()
    assert (digester.digested, ours.reading) == ([0], False)
    await ours.scrub(1, Chunks.of([1]))
    assert digester.digested == [0]


async def test_a_digest_that_breaks_fails_the_turn() -> None:
    ours, _ = inspector(Glance(), Broken())
    assert await ours.scrub(1, Chunks.of([0])) == events.ScrubFailed(1, "MemoryError: device full")
    assert not ours.reading
