"""The journal: a few calls for a whole cold start, nothing lost at its end, nothing in its way."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from coldstart.bus.memory import MemoryBus
from coldstart.journal import GATHER_SECONDS, KEPT, LATER_SECONDS, Journal, Line
from coldstart.ports import Deferred
from coldstart.testing.bus_contract import claim
from coldstart.testing.harness import LINEAGE, SHARD, Fleet, TroubledBus, fleet
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


def phases(workers: Fleet, worker: str) -> list[str]:
    lines = [msgspec.json.decode(entry, type=Line) for entry in workers.store.journal(SHARD.key)]
    return [line.phase for line in lines if line.worker == worker]


async def test_what_comes_in_a_moment_is_written_together_and_the_end_at_once() -> None:
    async with fleet() as workers:
        await workers.start("a").lends()
        await anyio.sleep(2 * GATHER_SECONDS)
        bus = TroubledBus(workers.store)
        started = anyio.current_time()
        b = workers.start("b", bus=bus)
        await b.ready()
        ended = anyio.current_time()
        await anyio.sleep(LATER_SECONDS + 0.001)
        assert phases(workers, "b")[-1] == "SERVE"
        assert len(phases(workers, "b")) >= 4
        assert bus.calls.count("record") <= 1 + (ended - started) / GATHER_SECONDS
        await b.drain()
        await anyio.sleep(LATER_SECONDS + 0.001)
        assert phases(workers, "b")[-1] == "GONE"


async def test_a_wait_is_written_while_it_lasts() -> None:
    async with fleet() as workers:
        leading = claim("leader", shard=SHARD.key, layout=LINEAGE, lead_seconds=30.0)
        bus = TroubledBus(workers.store)
        await bus.claim(leading)
        workers.start("a", bus=bus)
        assert isinstance(await bus.claim(claim("b", shard=SHARD.key, layout=LINEAGE)), Deferred)
        await anyio.sleep(GATHER_SECONDS + 2 * LATER_SECONDS)
        assert set(phases(workers, "a")) == {"DISCOVER"}


async def test_a_store_that_is_down_costs_entries_and_nothing_else() -> None:
    async with fleet() as workers:
        bus = TroubledBus(workers.store)
        bus.down.add("record")
        a = workers.start("a", bus=bus)
        await a.lends()
        await anyio.sleep(2 * GATHER_SECONDS)
        assert phases(workers, "a") == []
        bus.down.clear()
        await a.drain()
        await anyio.sleep(2 * GATHER_SECONDS)
        assert phases(workers, "a")[-1] == "GONE"


async def test_entries_that_nobody_can_write_are_bounded_and_counted() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        await a.ready()
        (begun, *_) = (entry for entry in a.entries if type(entry.before) is not type(entry.after))
        journal = Journal(MemoryBus(workers.store), SHARD.key, "never-runs")
        for _ in range(KEPT + 3):
            journal(begun)
        assert journal.dropped == 3
