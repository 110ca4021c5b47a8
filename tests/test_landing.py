"""Landing: what is waiting is digested in one call where the digester wants it so, and everything is told once."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence

import anyio
import pytest

from coldstart.landing import Landing
from coldstart.layout import Span
from coldstart.plan import Chunks
from coldstart.ports import Memory
from coldstart.testing.harness import HashDigester
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transfers import eventually

CHUNK = 1024 * 1024
COUNT = 12


class Batches(HashDigester):
    """Takes ``most`` chunks a call, notes each call, and holds calls until it is let go."""

    def __init__(self, most: int, held: bool = False) -> None:
        self.most, self.calls = most, list[tuple[int, ...]]()
        self.go = threading.Event()
        if not held:
            self.go.set()

    def at_once(self, memory: Memory) -> int:
        return self.most

    def digests(self, memory: Memory, spans: Sequence[Span]) -> Sequence[bytes]:
        self.calls.append(tuple(span.offset // CHUNK for span in spans))
        assert self.go.wait(10)
        return [self.digest(memory, span) for span in spans]


MEMORY = BytesMemory(layout_of(COUNT * CHUNK, chunk_bytes=CHUNK), seed=1)


async def digests(digester: HashDigester, land: Callable[[Landing], Awaitable[None]]) -> dict[int, bytes]:
    """What is told while ``land`` lets chunks land."""
    told: dict[int, bytes] = {}

    async def on_chunk(chunk: int, digest: bytes) -> None:
        assert chunk not in told
        told[chunk] = digest

    landing = Landing(MEMORY, digester, Chunks.first(COUNT), lambda nbytes: None, on_chunk)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(landing.verify)
        await land(landing)
        await landing.settle()
    return told


async def all_at_once(landing: Landing) -> None:
    for chunk in range(COUNT):
        landing.landed(MEMORY.layout.chunk(chunk))


@pytest.mark.parametrize("most", [1, 3, 100])
async def test_all_chunks_are_told_once_with_their_own_digest(most: int) -> None:
    digester = Batches(most)
    expected = {
        chunk: HashDigester().digest(MEMORY, MEMORY.layout.chunk(chunk)) for chunk in range(MEMORY.layout.chunks)
    }
    assert await digests(digester, all_at_once) == expected
    assert sorted(chunk for call in digester.calls for chunk in call) == list(range(COUNT))
    assert max(map(len, digester.calls)) <= most


async def test_what_lands_while_digests_are_computed_is_one_call() -> None:
    digester = Batches(100, held=True)

    async def land(landing: Landing) -> None:
        landing.landed(MEMORY.layout.chunk(0))
        await eventually(lambda: len(digester.calls) == 1)
        for chunk in range(1, COUNT):
            landing.landed(MEMORY.layout.chunk(chunk))
        await landing.settle()
        digester.go.set()

    await digests(digester, land)
    assert digester.calls == [(0,), tuple(range(1, COUNT))]


async def test_a_digester_without_batches_gets_one_chunk_a_call() -> None:
    told = await digests(HashDigester(), all_at_once)
    assert sorted(told) == list(range(COUNT))


@pytest.mark.parametrize("most", [1, 100])
async def test_pieces_that_land_in_many_threads_make_whole_chunks(most: int) -> None:
    async def land(landing: Landing) -> None:
        pieces = [Span(at, 64 * 1024) for at in range(0, COUNT * CHUNK, 64 * 1024)]

        def part(first: int) -> None:
            for piece in pieces[first::3]:
                landing.landed(piece)
                landing.landed(piece)

        async with anyio.create_task_group() as tasks:
            for first in range(3):
                tasks.start_soon(anyio.to_thread.run_sync, part, first)

    digester = Batches(most)
    assert sorted(await digests(digester, land)) == list(range(COUNT))
    assert sorted(chunk for call in digester.calls for chunk in call) == list(range(COUNT)), "none twice"


@pytest.mark.parametrize("missing", range(4))
async def test_a_chunk_is_not_digested_before_its_last_byte_is_here(missing: int) -> None:
    """Whichever part of it comes last, and in whatever order the others came."""
    pieces = [Span(at, CHUNK // 4) for at in range(CHUNK, 2 * CHUNK, CHUNK // 4)]
    digester = Batches(1)

    async def land(landing: Landing) -> None:
        for piece in reversed([*pieces[:missing], *pieces[missing + 1 :]]):
            landing.landed(piece)
        landing.landed(Span(pieces[missing].offset, CHUNK // 4 - 1))
        await anyio.sleep(0.01)

    assert (await digests(digester, land), digester.calls) == ({}, [])


@pytest.mark.parametrize("most", [1, 100])
async def test_what_lands_late_changes_nothing(most: int) -> None:
    digester = Batches(most)

    async def land(landing: Landing) -> None:
        landing.landed(MEMORY.layout.chunk(0))
        await landing.settle()
        landing.landed(MEMORY.layout.chunk(1))

    assert list(await digests(digester, land)) == [0]


class Broken(HashDigester):
    """Fails at the second call."""

    def __init__(self, most: int) -> None:
        self.most, self.calls = most, 0

    def at_once(self, memory: Memory) -> int:
        return self.most

    def digests(self, memory: Memory, spans: Sequence[Span]) -> Sequence[bytes]:
        self.calls += 1
        if self.calls > 1:
            raise OSError("the device is gone")
        return [self.digest(memory, span) for span in spans]


@pytest.mark.parametrize("most", [1, 2])
async def test_a_digester_that_fails_ends_it(most: int) -> None:
    """Nobody goes on to wait for chunks that may never come, and what they would be added to is gone."""

    async def land(landing: Landing) -> None:
        await all_at_once(landing)
        await anyio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        await digests(Broken(most), land)
    assert caught.group_contains(OSError, match="the device is gone")


@pytest.mark.parametrize("most", [1, 100])
async def test_whoever_is_cancelled_leaves_no_thread(most: int) -> None:
    digester = Batches(most, held=True)
    landing = Landing(MEMORY, digester, Chunks.first(COUNT), lambda nbytes: None, _unheard)
    before = threading.active_count()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(landing.verify)
        landing.landed(MEMORY.layout.chunk(0))
        await eventually(lambda: len(digester.calls) == 1)
        tasks.cancel_scope.cancel()
        digester.go.set()
    assert digester.calls == [(0,)]
    assert threading.active_count() <= before + 1, "that of the pool is idle"


async def _unheard(chunk: int, digest: bytes) -> None:
    """What is told in the end, before the cancellation is noticed, harms nobody."""
