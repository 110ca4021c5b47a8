"""The store may be down, empty, slow or late at any step: what it costs, and what is kept."""

from __future__ import annotations

import anyio
import pytest

from coldstart.bus.memory import MemoryBus
from coldstart.phases.states import (
    Checking,
    Discovering,
    Handshaking,
    Idle,
    Loading,
    Publishing,
    Serving,
    State,
    Transferring,
    Waiting,
)
from coldstart.plan import Limits
from coldstart.source import Mode, Terms
from coldstart.testing.harness import (
    CHUNK,
    LAYOUT,
    PEER_SECONDS,
    SHARD,
    STORAGE_SECONDS,
    TroubledBus,
    fleet,
)
from coldstart.testing.transports import Breaking, Stalling
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime

LIMITS = Limits()
BUDGET = STORAGE_SECONDS + LIMITS.patience


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


async def test_without_coordination_storage_is_read_and_the_report_says_why() -> None:
    async with fleet() as workers:
        report = await workers.start("a", no_bus="coordination is switched off").ready()
        assert report.path == "storage"
        assert report.detours[0] == "coordination is switched off"
        assert report.against == "own storage read"
        assert report.seconds == pytest.approx(STORAGE_SECONDS, abs=0.1)


async def test_an_outage_longer_than_a_grant_leaves_a_running_transfer_alone() -> None:
    """The source sees its memory being read, and needs no letter to know that the joiner lives."""
    seconds = 3 * Terms("", 1, ()).grant
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        b = workers.start("b", peer_seconds=seconds, limits=Limits(patience=seconds / 4, stall=seconds / 4, floor=0))
        await b.reached(Transferring)
        workers.store.stop()
        report = await b.ready()
        assert (report.path, report.detours) == ("peer", ())
        assert report.seconds == pytest.approx(seconds, rel=0.2)


@pytest.mark.parametrize(
    ("state", "path"),
    [
        (Discovering, "storage"),
        (Handshaking, "storage"),
        (Transferring, "peer"),
        (Checking, "peer"),
    ],
)
async def test_a_store_that_goes_down_under_a_joiner_never_costs_more_than_patience(
    state: type[State], path: str
) -> None:
    async with fleet() as workers:
        await workers.start("a").lends()
        b = workers.start("b", on_enter={state: workers.store.stop})
        report = await b.ready()
        assert report.path == path
        assert report.verified
        if path == "peer":
            assert report.seconds == pytest.approx(PEER_SECONDS, abs=0.1)
            assert report.detours == ()
        else:
            assert report.seconds <= BUDGET
            assert any("stopped" in reason for reason in report.detours)
        await anyio.sleep(30.0)
        assert isinstance(b.joiner.state, Serving), "it serves whether or not anybody hears of it"


@pytest.mark.parametrize("state", [Loading, Publishing, Checking, Serving])
async def test_a_loader_whose_store_goes_down_serves_and_lends_when_it_is_back(state: type[State]) -> None:
    async with fleet() as workers:
        a = workers.start("a", on_enter={state: workers.store.stop})
        report = await a.ready()
        assert report.path == "storage"
        assert report.seconds == pytest.approx(STORAGE_SECONDS, abs=0.1)
        await anyio.sleep(60.0)
        workers.store.start(empty=True)
        await a.lends()
        report = await workers.start("b").ready()
        assert (report.path, report.sources) == ("peer", ("a",))


async def test_a_store_that_is_down_when_the_truth_is_needed_does_not_stop_a_loader() -> None:
    """Elected with a known truth (its sources are gone), and then the truth cannot be fetched."""
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        await a.drain()
        bus = TroubledBus(workers.store)
        bus.down.add("fetch_truth")
        report = await workers.start("b", bus=bus).ready()
        assert report.path == "storage"
        assert report.seconds == pytest.approx(STORAGE_SECONDS, abs=0.1)
        assert "fetch_truth fails here" in report.detours
        assert report.root == a.report.root, "the same bytes, published again"


async def test_a_joiner_without_the_truth_takes_nothing_from_a_peer() -> None:
    async with fleet() as workers:
        await workers.start("a").lends()
        bus = TroubledBus(workers.store)
        bus.down.add("fetch_truth")
        b = workers.start("b", bus=bus)
        report = await b.ready()
        assert (report.path, report.bytes_peer) == ("storage", 0)
        assert not any(isinstance(entry.after, Transferring) for entry in b.entries)
        assert report.seconds == pytest.approx(STORAGE_SECONDS, abs=0.1)


async def test_an_outage_under_a_transfer_keeps_what_was_verified() -> None:
    async with fleet() as workers:
        await workers.start("a").lends()
        b = workers.start(
            "b",
            transport=lambda inner: Breaking(inner, 3 * CHUNK),
            on_enter={Transferring: workers.store.stop},
        )
        report = await b.ready()
        assert report.path == "mixed"
        assert b.storage.read_bytes == LAYOUT.nbytes - 3 * CHUNK
        assert report.seconds <= BUDGET


async def test_a_slow_store_costs_at_most_patience() -> None:
    async with fleet() as workers:
        await workers.start("a").lends()
        bus = TroubledBus(workers.store)
        bus.slow["claim"] = 60.0
        report = await workers.start("b", bus=bus).ready()
        assert report.path == "storage"
        assert report.seconds == pytest.approx(LIMITS.patience + STORAGE_SECONDS, abs=0.1)
        assert "no source within the budget" in report.detours


async def test_a_slot_that_comes_too_late_is_given_back() -> None:
    async with fleet() as workers:
        a = workers.start("a", slots=1)
        await a.lends()
        bus = TroubledBus(workers.store)
        bus.late = LIMITS.patience + 1.0
        b = workers.start("b", bus=bus)
        await b.reached(Loading)
        await anyio.sleep(2.0)
        assert (await MemoryBus(workers.store).adverts(SHARD.key))[0].used == 0
        assert a.source.state.grants == ()
        assert (await b.ready()).path == "storage"


async def test_an_offer_that_is_faster_than_the_answer_to_the_claim_is_not_lost() -> None:
    async with fleet() as workers:
        await workers.start("a").lends()
        bus = TroubledBus(workers.store)
        bus.late = 0.5
        report = await workers.start("b", bus=bus).ready()
        assert (report.path, report.sources) == ("peer", ("a",))
        assert report.seconds == pytest.approx(0.5 + PEER_SECONDS, abs=0.1)


async def test_a_claim_whose_answer_is_lost_leads_to_storage() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        bus = TroubledBus(workers.store)
        bus.down.add("claim")
        report = await workers.start("b", bus=bus).ready()
        assert report.path == "storage"
        assert report.seconds == pytest.approx(STORAGE_SECONDS, abs=0.1)


async def test_a_store_emptied_while_joiners_wait_elects_one_of_them() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        b, c = workers.start("b"), workers.start("c")
        await b.reached(Waiting)
        await c.reached(Waiting)
        await a.kill()
        workers.store.stop()
        workers.store.start(empty=True)
        reports = [await b.ready(), await c.ready()]
        assert sorted(report.path for report in reports) == ["peer", "storage"]
        assert max(report.seconds for report in reports) <= STORAGE_SECONDS + PEER_SECONDS + LIMITS.patience


async def test_sources_advertise_again_when_an_emptied_store_is_back() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        workers.store.stop()
        await anyio.sleep(1.0)
        workers.store.start(empty=True)
        await anyio.sleep(3.0)
        report = await workers.start("b").ready()
        assert (report.path, report.root) == ("peer", a.report.root)


async def test_a_source_whose_truth_the_store_has_lost_is_not_believed_until_it_is_published_again() -> None:
    """Its offer comes nevertheless; it is ignored. At its next renewal the source hears what the store lacks."""
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        workers.store.shard(SHARD.key).truths.clear()
        report = await workers.start("b").ready()
        assert (report.path, report.root) == ("peer", a.report.root)
        assert report.seconds <= LIMITS.patience + PEER_SECONDS
        assert a.source.state.mode is Mode.OPEN


async def test_what_was_verified_must_agree_with_what_storage_gives_after_the_store_forgot() -> None:
    """The truth that the joiner knows holds for its storage read, and is published again."""
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()

        def forget() -> None:
            a.scope.cancel()
            workers.store.start(empty=True)

        b = workers.start("b", transport=lambda inner: Stalling(inner, 3 * CHUNK), on_enter={Transferring: forget})
        report = await b.lends()
        assert (report.path, report.root) == ("mixed", a.report.root)
        assert report.against == "published truth"
        assert (await workers.start("c").ready()).root == a.report.root


async def test_an_idle_joiner_needs_nothing() -> None:
    async with fleet() as workers:
        workers.store.stop()
        a = workers.start("a")
        assert isinstance(a.joiner.state, Idle)
        assert (await a.ready()).path == "storage"
