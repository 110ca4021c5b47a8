"""The journal: a few calls for a whole cold start, nothing lost at its end, nothing in its way."""

from __future__ import annotations

import anyio
import pytest

from coldstart.chronicle.lines import Entered, Header, unpack
from coldstart.journal import AGAIN_SECONDS, GATHER_SECONDS, KEPT, LATER_SECONDS, LENT_SECONDS, Journal
from coldstart.ports import Deferred
from coldstart.testing.bus_contract import claim
from coldstart.testing.harness import LAYOUT, LINEAGE, SHARD, Fleet, TroubledBus, fleet
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


def phases(workers: Fleet, worker: str) -> list[str]:
    sheets = [unpack(entry) for entry in workers.store.journal(SHARD.key)]
    lines = [line for sheet, known in sheets if sheet.worker == worker for line in known.values()]
    return [line.phase for line in lines if isinstance(line, Entered)]


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


async def test_what_was_lent_costs_its_source_a_call_in_a_while_and_none_for_each_joiner() -> None:
    async with fleet() as workers:
        bus = TroubledBus(workers.store)
        await workers.start("a", bus=bus, slots=8).lends()
        await anyio.sleep(LENT_SECONDS)
        calls = bus.calls.count("record")
        for name in "bcde":
            await workers.start(name).ready()
        await anyio.sleep(LENT_SECONDS)
        assert bus.calls.count("record") <= calls + 2


async def test_a_store_that_is_down_costs_a_call_now_and_then_and_no_line_that_there_is_room_for() -> None:
    async with fleet() as workers:
        bus = TroubledBus(workers.store)
        bus.down.add("record")
        a = workers.start("a", bus=bus)
        await a.lends()
        calls = bus.calls.count("record")
        await anyio.sleep(10 * AGAIN_SECONDS)
        assert phases(workers, "a") == []
        assert bus.calls.count("record") <= calls + 11
        bus.down.clear()
        await anyio.sleep(AGAIN_SECONDS)
        written = phases(workers, "a")
        assert (written[0], written[-1]) == ("DISCOVER", "SERVE")
        await a.drain()
        await anyio.sleep(LATER_SECONDS + 0.001)
        assert phases(workers, "a")[-1] == "GONE"


@pytest.mark.parametrize("down", [False, True])
async def test_whoever_ends_waits_for_its_last_lines_unless_they_cannot_be_written(down: bool) -> None:
    async with fleet() as workers:
        bus = TroubledBus(workers.store)
        a = workers.start("a", bus=bus)
        await a.lends()
        if down:
            bus.down.add("record")
        await a.drain()
        with anyio.fail_after(LATER_SECONDS):
            await a.node.written()
        assert (phases(workers, "a")[-1:] == ["GONE"]) is not down


async def test_lines_that_nobody_can_write_are_bounded_and_counted() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        await a.ready()
        begun = next(entry for entry in a.entries if type(entry.before) is not type(entry.after))
        header = Header(start="s", worker="never-runs", shard=SHARD.key)
        journal = Journal(TroubledBus(workers.store), header, LAYOUT, 0.0)
        for _ in range(KEPT + 3):
            journal.joiner(begun)
        assert journal.dropped == 3
