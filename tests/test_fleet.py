"""Several workers over fakes in virtual time: one reads storage, nobody mixes, nobody is disturbed."""

from __future__ import annotations

import anyio
import pytest

from coldstart import events
from coldstart.bus.memory import MemoryBus
from coldstart.claiming import LEAD_SECONDS
from coldstart.errors import ColdStartFailed, TransportError, TruthConflict
from coldstart.phases.states import Abandoning, Checking, Loading, Serving, Transferring, Waiting
from coldstart.plan import Limits
from coldstart.ports import Claim, ClaimOutcome, Deferred
from coldstart.source import Mode, Terms
from coldstart.testing.harness import (
    CHUNK,
    LAYOUT,
    LINEAGE,
    PEER_SECONDS,
    SHARD,
    STORAGE_SECONDS,
    FakeStorage,
    Fleet,
    Member,
    TroubledBus,
    fleet,
)
from coldstart.testing.transports import Stalling
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime

LIMITS = Limits()
TERMS = Terms(LINEAGE, 2, ("loopback",))
BUDGET = STORAGE_SECONDS + LIMITS.patience


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


def storage(workers: Fleet, seconds: float = STORAGE_SECONDS, *, seed: int = 1, partial: bool = True) -> FakeStorage:
    return FakeStorage(workers.weights(seed=seed), seconds, partial=partial)


def held(member: Member) -> int:
    """How many joiners may read from it now."""
    return len(member.source.state.grants)


# --------------------------------------------------------------------------------- single flight


@pytest.mark.parametrize("partial", [True, False], ids=["by chunks", "as a whole"])
@pytest.mark.parametrize("count", [2, 10])
async def test_workers_that_start_together_read_storage_once(count: int, partial: bool) -> None:
    async with fleet() as workers:
        members = [workers.start(f"w{index}", storage=storage(workers, partial=partial)) for index in range(count)]
        reports = [await member.ready() for member in members]
        assert workers.storage_reads == 1
        assert sorted(report.path for report in reports) == ["peer"] * (count - 1) + ["storage"]
        rounds = (count - 1).bit_length()
        assert max(report.seconds for report in reports) <= STORAGE_SECONDS + (rounds + 1) * PEER_SECONDS


async def test_a_loader_keeps_its_lease_however_slow_its_chunks_are() -> None:
    async with fleet() as workers:
        slow = 40 * LEAD_SECONDS
        a = workers.start("a", storage=storage(workers, slow, partial=False), limits=Limits(storage_stall=2 * slow))
        b = workers.start("b")
        await a.ready()
        assert (await b.ready()).path == "peer"
        assert workers.storage_reads == 1


async def test_a_dead_loader_is_replaced_when_its_lease_ends() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        b, c = workers.start("b"), workers.start("c")
        await b.reached(Waiting)
        await anyio.sleep(4.0)
        await a.kill()
        reports = [await b.ready(), await c.ready()]
        assert workers.storage_reads == 2, "the dead one's and one more"
        assert sorted(report.path for report in reports) == ["mixed", "peer"]
        longest = 4.0 + LEAD_SECONDS + 1.0 + STORAGE_SECONDS + PEER_SECONDS
        assert max(report.seconds for report in reports) <= longest


async def test_a_loader_whose_storage_hangs_does_not_hold_the_others() -> None:
    async with fleet() as workers:
        held = storage(workers)
        held.limit = 2 * CHUNK
        a = workers.start("a", storage=held)
        await a.reached(Loading)
        report = await workers.start("b").ready()
        assert report.path == "mixed", "what it had read is kept"
        assert report.seconds <= 2 * STORAGE_SECONDS * 2 / 7 + 2 * LEAD_SECONDS + STORAGE_SECONDS
        with pytest.raises(ColdStartFailed, match="stalled"):
            await a.ready()


async def test_storage_that_fails_ends_the_start_by_name_and_the_next_may_try() -> None:
    async with fleet() as workers:
        broken = storage(workers)
        broken.limit, broken.error = 2 * CHUNK, TransportError("disk says no", reason="storage")
        a, b = workers.start("a", storage=broken), workers.start("b")
        with pytest.raises(ColdStartFailed, match="disk says no"):
            await a.ready()
        report = await b.ready()
        assert report.path == "mixed", "what it had read is kept"
        assert report.seconds <= BUDGET, "the lease was given up at once"


async def test_a_loader_that_takes_too_long_is_not_followed_for_ever() -> None:
    async with fleet(Limits(follow=3.0)) as workers:
        a = workers.start("a", storage=storage(workers, 1000.0), limits=Limits(storage_stall=2000.0))
        await a.reached(Loading)
        report = await workers.start("b").ready()
        assert report.path == "storage"
        assert "the loader took too long" in report.detours
        assert report.seconds == pytest.approx(3.0 + STORAGE_SECONDS, abs=0.6)


# -------------------------------------------------------------------------------- truth in dispute


async def test_storage_that_differs_from_the_published_truth_is_never_served() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        await a.drain()
        b = workers.start("b", storage=storage(workers, seed=2))
        with pytest.raises(TruthConflict, match="differs from the published truth"):
            await b.ready()
        assert b.source.state.mode is Mode.SILENT


async def test_two_loaders_that_disagree_stop_the_second_and_everybody_after() -> None:
    async with fleet() as workers:
        bus = TroubledBus(workers.store)
        bus.down |= {"lead", "state"}  # it loses its lease and does not know, and nobody can follow it
        a = workers.start("a", bus=bus)
        await a.reached(Loading)
        b = workers.start("b", storage=storage(workers, seed=2))
        await a.ready()
        with pytest.raises(TruthConflict, match="disagree"):
            await b.ready()
        c = workers.start("c")
        with pytest.raises(TruthConflict, match="disagree"):
            await c.ready()
        assert c.report.seconds < 1.0
        assert not any(isinstance(member.joiner.state, Serving) for member in (b, c))


async def test_chunks_of_two_truths_are_never_mixed() -> None:
    """The store forgets, and somebody with other weights under the same name publishes first."""
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        b = workers.start("b", transport=lambda inner: Stalling(inner, 3 * CHUNK))
        await b.reached(Transferring)
        await a.kill()
        workers.store.start(empty=True)
        c = workers.start("c", storage=storage(workers, 0.5, seed=2))
        for worker in (b, c):
            with pytest.raises(TruthConflict, match="disagree"):
                await worker.ready()
        await anyio.sleep(0.1)
        assert await MemoryBus(workers.store).adverts(SHARD.key) == (), "nothing is lent, and no slot taken"


# ------------------------------------------------------------------------- sources and their slots


async def test_weights_that_change_under_a_transfer_end_it_at_once() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        b = workers.start("b", on_enter={Transferring: lambda: a.source.post(events.WeightsChanged())})
        report = await b.ready()
        assert any("weights changed" in reason for reason in report.detours)
        assert report.sources in ((), ("a",))
        assert a.source.state.grants == ()
        assert report.seconds <= BUDGET


async def test_a_new_generation_since_the_claim_is_told_and_costs_no_verified_chunk() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()

        def change() -> None:
            a.source.post(events.WeightsChanged())
            a.source.post(events.LendingStarted())

        bus = TroubledBus(workers.store)
        bus.slow["release"] = 0.5
        b = workers.start("b", bus=bus, on_enter={Checking: change})
        report = await b.ready()
        assert (report.path, report.bytes_peer) == ("peer", LAYOUT.payload)
        assert any("weights of a changed" in reason for reason in report.detours)
        assert b.storage.read_bytes == 0
        assert b.content == b.storage.held.content()


async def test_a_freed_slot_is_taken_without_a_refusal() -> None:
    async with fleet() as workers:
        a = workers.start("a", slots=1)
        await a.lends()
        joiners = [workers.start(f"j{index}", slots=0) for index in range(4)]
        for joiner in joiners:
            report = await joiner.ready()
            assert report.path == "peer", report.detours
            assert report.detours == ()
        assert max(len([grant for grant in entry.after.grants if not grant.closing]) for entry in a.lent) == 1


async def test_busy_sources_are_waited_for_only_as_long_as_patience_lasts() -> None:
    async with fleet() as workers:
        await workers.start("a", slots=1).lends()
        first = workers.start("b", peer_seconds=100.0, limits=Limits(patience=60.0, stall=60.0, floor=0))
        await first.reached(Transferring)
        report = await workers.start("c").ready()
        assert report.path == "storage"
        assert report.seconds == pytest.approx(LIMITS.patience + STORAGE_SECONDS, abs=0.1)
        assert any("busy" in reason for reason in report.detours)


async def test_a_joiner_that_dies_costs_a_slot_for_a_while_and_nothing_else() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        b = workers.start("b", transport=lambda inner: Stalling(inner, CHUNK))
        await b.reached(Transferring)
        await anyio.sleep(0.5)
        await b.kill()
        assert held(a) == 1
        await anyio.sleep(TERMS.grant + 1.0)
        assert held(a) == 0
        assert workers.hub.offers == {}
        assert (await workers.start("c").ready()).path == "peer"


async def test_a_long_transfer_lives_on_its_signs_of_life() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        report = await workers.start("b", peer_seconds=300.0, limits=Limits(patience=60.0, stall=60.0, floor=0)).ready()
        assert report.path == "peer"
        assert report.seconds == pytest.approx(300.0, abs=1.0)
        assert a.source.state.grants == ()


async def test_a_draining_source_finishes_what_it_began_and_takes_nothing_new() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        b = workers.start("b", peer_seconds=5.0)
        await b.reached(Transferring)
        began = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(a.drain)
            await anyio.sleep(0.1)
            assert await MemoryBus(workers.store).adverts(SHARD.key) == ()
            assert (await b.ready()).path == "peer"
        assert anyio.current_time() - began <= 5.5
        assert workers.hub.offers == {}


async def test_a_drain_has_an_end_and_the_joiner_goes_elsewhere() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        b = workers.start("b", peer_seconds=1000.0, limits=Limits(patience=300.0, stall=300.0, floor=0))
        await b.reached(Transferring)
        began = anyio.current_time()
        await a.drain()
        assert anyio.current_time() - began == pytest.approx(TERMS.drain, abs=0.1)
        assert workers.hub.offers == {}
        await b.reached(Abandoning, Loading)
        report = await b.ready()
        assert any("revoked" in reason for reason in report.detours)
        assert report.verified


async def test_an_idle_source_is_withdrawn_before_it_says_that_it_is_drained() -> None:
    async with fleet() as workers:
        bus = TroubledBus(workers.store)
        bus.slow["withdraw"] = 0.5
        a = workers.start("a", bus=bus)
        await a.lends()
        await a.drain()
        assert await MemoryBus(workers.store).adverts(SHARD.key) == ()


class _OnceBusy(TroubledBus):
    """Its first claim finds every source busy, and has no place in line."""

    async def claim(self, claim: Claim) -> ClaimOutcome:
        if "claim" in self.calls:
            return await super().claim(claim)
        self.calls.append("claim")
        return Deferred("", "", "")


async def test_an_offer_that_is_faster_than_the_answer_to_a_repeated_claim_is_heard() -> None:
    async with fleet() as workers:
        await workers.start("source").lends()
        bus = _OnceBusy(workers.store)
        bus.late = 0.3
        report = await workers.start("joiner", bus=bus).ready()
        assert report.sources == ("source",)
        assert not report.detours
