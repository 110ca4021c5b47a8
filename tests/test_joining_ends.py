"""A joiner that is told to stop, lied to, or let down by its own plugins: an end, a reason, nothing held."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

import anyio
import pytest

from coldstart import events
from coldstart.bus.memory import MemoryBus, MemoryStore
from coldstart.claiming import SLOT_SECONDS
from coldstart.errors import ColdStartFailed, IntegrityError, SkeletonError, TruthConflict
from coldstart.layout import Span
from coldstart.messages import AnyMessage, Offer, Refusal, encode
from coldstart.phases.states import (
    Checking,
    Discovering,
    Gone,
    Handshaking,
    Loading,
    Publishing,
    Serving,
    State,
    Transferring,
    Waiting,
)
from coldstart.plan import Limits
from coldstart.ports import Claim, ClaimOutcome, Landed, Memory, Stated
from coldstart.testing.harness import (
    CHUNK,
    LAYOUT,
    SHARD,
    STORAGE_SECONDS,
    FakeStorage,
    Fleet,
    HashDigester,
    Member,
    TroubledBus,
    fleet,
)
from coldstart.testing.transports import Corrupting, Delayed, Stalling
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime

LIMITS = Limits()


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


async def free(workers: Fleet, member: Member) -> bool:
    """Whether nobody holds anything of ``member``, in the store or at its transport."""
    used = [advert.used for advert in await MemoryBus(workers.store).adverts(SHARD.key)]
    return used == [0] and member.source.state.grants == () and workers.hub.offers == {}


# ------------------------------------------------------------------------------------ told to stop


@pytest.mark.parametrize(
    ("state", "seconds"),
    [(Discovering, SLOT_SECONDS), (Handshaking, 0.5), (Transferring, 0.5), (Checking, 0.5)],
)
async def test_a_joiner_that_is_stopped_gives_everything_back(state: type[State], seconds: float) -> None:
    """At once; but a slot whose claim was still under way is only lost when its lease ends."""
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        b = workers.start("b", on_enter={state: lambda: b.joiner.post(events.DrainRequested())})
        await b.reached(Gone, Serving)
        await b.drain()
        await anyio.sleep(seconds)
        assert isinstance(b.joiner.state, Gone)
        assert await free(workers, a)


@pytest.mark.parametrize("state", [Loading, Publishing, Checking])
async def test_a_loader_that_is_stopped_resigns_and_the_next_takes_over(state: type[State]) -> None:
    async with fleet() as workers:
        a = workers.start("a", on_enter={state: lambda: a.joiner.post(events.DrainRequested())})
        await a.reached(state)
        b = workers.start("b")
        await a.drain()
        began = anyio.current_time()
        report = await b.ready()
        assert report.verified
        assert anyio.current_time() - began <= STORAGE_SECONDS + 1.0


async def test_a_waiting_joiner_that_is_stopped_holds_nobody_up() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        await a.reached(Loading)
        b = workers.start("b")
        await b.reached(Waiting)
        await b.drain()
        assert (await a.ready()).seconds == pytest.approx(STORAGE_SECONDS, abs=0.1)


# --------------------------------------------------------------------------------------- lied to


async def test_letters_that_prove_nothing_are_dropped() -> None:
    async with fleet() as workers:
        a = workers.start("a", transport=lambda inner: Delayed(inner, offer=1.0))
        await a.lends()
        b = workers.start("b")
        await b.reached(Handshaking)
        await anyio.sleep(0.5)
        (grant,) = a.source.state.grants
        bus = MemoryBus(workers.store)
        right = grant.number + 1
        forged: tuple[AnyMessage, ...] = (
            Offer(transfer=grant.transfer, answer=right + 1, number=1, transport="loopback", ticket=b"", generation=1),
            Offer(transfer="other", answer=right, number=1, transport="loopback", ticket=b"", generation=1),
            Refusal(transfer=grant.transfer, answer=0, reason="go away"),
        )
        for message in forged:
            await bus.send(SHARD.key, grant.joiner, encode(message), secrets.token_hex(8))
        report = await b.ready()
        assert (report.path, report.detours) == ("peer", ())
        assert sum(isinstance(entry.event, events.OfferReceived | events.OfferRefused) for entry in b.entries) == 1


class _Misstating(MemoryBus):
    """States digests of single chunks that are not the truth's."""

    def __init__(self, store: MemoryStore, digests: Mapping[int, bytes]) -> None:
        super().__init__(store)
        self._digests = digests

    async def stated(self, shard: str, layout: str, first: int = 0) -> Stated:
        told = await super().stated(shard, layout, first)
        return Stated(told.root, {**told.digests, **{each: self._digests[each] for each in told.digests}})


async def test_chunks_that_equal_what_was_stated_and_not_the_truth_are_not_served() -> None:
    """Each was right when it came, by what was known then. What is served is right by what was published."""
    async with fleet() as workers:
        wrong = workers.weights()
        wrong.storages[0][CHUNK] ^= 1
        stated = {chunk: HashDigester().digest(wrong, LAYOUT.chunk(chunk)) for chunk in range(LAYOUT.chunks)}
        workers.start("a")
        b = workers.start("b", bus=_Misstating(workers.store, stated), transport=lambda inner: Corrupting(inner, 1))
        with pytest.raises(SkeletonError, match="stated before the truth was known does not equal it"):
            await b.ready()
        assert b.content == bytes(wrong.content()), "it had all of it, and each chunk as it was stated"


async def test_a_transport_that_was_never_announced_is_not_used() -> None:
    async with fleet() as workers:
        a = workers.start("a", transport=lambda inner: Delayed(inner, offer=1.0))
        await a.lends()
        b = workers.start("b")
        await b.reached(Handshaking)
        await anyio.sleep(0.5)
        (grant,) = a.source.state.grants
        offer = Offer(
            transfer=grant.transfer, answer=grant.number + 1, number=1, transport="other", ticket=b"", generation=1
        )
        await MemoryBus(workers.store).send(SHARD.key, grant.joiner, encode(offer), "n")
        report = await b.ready()
        assert report.path == "storage"
        assert any("other" in reason for reason in report.detours)


# -------------------------------------------------------------------------------- let down by plugins


class BrokenDigester(HashDigester):
    """Raises at its ``number``-th call and ever after."""

    def __init__(self, number: int = 1, error: Exception | None = None) -> None:
        self._left = number
        self._error = error or ZeroDivisionError("in the kernel")

    def digest(self, memory: Memory, span: Span) -> bytes:
        self._left -= 1
        if self._left <= 0:
            raise self._error
        return super().digest(memory, span)


@pytest.mark.parametrize("error", [ZeroDivisionError("in the kernel"), IntegrityError("memory lent too little")])
async def test_a_digester_that_breaks_is_a_failure_by_its_name(error: Exception) -> None:
    async with fleet() as workers:
        await workers.start("a").lends()
        b = workers.start("b", digester=BrokenDigester(3, error))
        with pytest.raises(ColdStartFailed, match=str(error)):
            await b.ready()
        assert "digest broke" in b.report.detours[-1]
        assert b.report.attempts[0].source == "a"
        assert b.report.seconds <= STORAGE_SECONDS


async def test_a_self_check_that_raises_is_a_failed_check() -> None:
    def broken() -> list[str]:
        raise KeyError("lm_head")

    async with fleet() as workers:
        with pytest.raises(SkeletonError, match="KeyError: 'lm_head'"):
            await workers.start("a", self_check=broken).ready()


class BrokenBus(MemoryBus):
    """A bus with a bug."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)

    async def claim(self, claim: Claim) -> ClaimOutcome:
        raise AttributeError("a bug in the bus")


async def test_a_bug_in_the_bus_leads_to_storage() -> None:
    async with fleet() as workers:
        report = await workers.start("a", bus=BrokenBus(workers.store)).ready()
        assert report.path == "storage"
        assert "AttributeError: a bug in the bus" in report.detours


async def test_storage_that_is_read_as_a_whole_makes_everything_unproven_again() -> None:
    async with fleet() as workers:
        await workers.start("a").lends()
        whole = FakeStorage(workers.weights(), partial=False)
        b = workers.start("b", transport=lambda inner: Stalling(inner, 3 * CHUNK), storage=whole)
        report = await b.ready()
        assert b.storage.read_bytes == LAYOUT.nbytes
        assert report.verified
        assert report.seconds <= STORAGE_SECONDS + LIMITS.patience
        other = FakeStorage(workers.weights(), partial=False)
        other.held.storages[0][0] ^= 1  # where the chunks were verified already
        c = workers.start("c", transport=lambda inner: Stalling(inner, 3 * CHUNK), storage=other)
        with pytest.raises(TruthConflict, match="chunk 0 of our own copy differs"):
            await c.ready()


async def test_of_those_who_waited_for_a_dead_reader_in_a_chain_one_reads_what_is_left() -> None:
    """Whoever hears too late that the one before it goes on gives that up, and yet does not read beside it."""
    async with fleet() as workers:
        a = workers.start("a", storage=FakeStorage(workers.weights(), limit=3 * CHUNK), slots=1)
        bus = TroubledBus(workers.store)
        others = list[Member]()
        for name, own in (("b", bus), ("c", None), ("d", None)):
            others.append(workers.start(name, slots=1, bus=own))
            await others[-1].reached(Transferring)
        for each in others:
            while len(each.joiner.state.journey.verified) < 3:
                await each.changed.wait()
        bus.slow["send"] = 1.0
        await a.kill()
        reports = [await each.ready() for each in others]
        assert "b: stalled" in reports[1].detours
        assert sum(each.storage.read_bytes for each in others) == LAYOUT.nbytes - 3 * CHUNK
        assert sorted(report.path for report in reports) == ["mixed", "peer", "peer"]


async def test_a_whole_load_counts_as_storage_and_what_a_peer_gave_before_as_its_attempt() -> None:
    async with fleet() as workers:
        await workers.start("a").lends()
        whole = FakeStorage(workers.weights(), partial=False)
        b = workers.start("b", transport=lambda inner: Stalling(inner, 3 * CHUNK), storage=whole)
        report = await b.ready()
        assert (report.path, report.sources) == ("storage", ())
        assert (report.bytes_peer, report.bytes_storage) == (0, LAYOUT.payload)
        given, loaded = report.attempts
        assert (given.source, given.outcome) == ("a", "stalled")
        assert CHUNK < given.bytes <= 3 * CHUNK
        assert (loaded.source, loaded.bytes) == ("storage", LAYOUT.payload)


async def test_a_whole_load_that_leaves_something_out_is_not_served() -> None:
    """Though a peer has given all of that before: the loader may have written over it."""

    class Short(FakeStorage):
        async def read(self, spans: Sequence[Span], landed: Landed) -> None:
            await super().read([Span(0, LAYOUT.nbytes)], lambda span: landed(Span(0, CHUNK)))

    async with fleet() as workers:
        await workers.start("a").lends()
        short = Short(workers.weights(), partial=False)
        b = workers.start("b", transport=lambda inner: Stalling(inner, LAYOUT.nbytes - 2 * CHUNK), storage=short)
        with pytest.raises(ColdStartFailed, match="storage read ended early"):
            await b.ready()


async def test_a_loader_that_shows_no_progress_has_a_limit_of_its_own() -> None:
    """Longer than a stall of chunk-wise reading, and yet not for ever."""
    limits = Limits()
    async with fleet() as workers:
        slow = FakeStorage(workers.weights(), 3 * limits.storage_stall, partial=False)
        report = await workers.start("a", storage=slow).ready()
        assert (report.path, report.verified) == ("storage", True)
    async with fleet() as workers:
        stuck = FakeStorage(workers.weights(), 2 * limits.whole_load, partial=False)
        with pytest.raises(ColdStartFailed, match="storage read stalled"):
            await workers.start("a", storage=stuck).ready()


async def test_workers_of_another_digest_algorithm_keep_their_own_truth() -> None:
    """In a rolling change of the algorithm, both read storage once, and nobody sees a conflict."""

    class Newer(HashDigester):
        algorithm = "blake2b-2"

        def digest(self, memory: Memory, span: Span) -> bytes:
            return super().digest(memory, span)[::-1]

    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        b = workers.start("b", digester=Newer())
        await b.lends()
        c = workers.start("c", digester=Newer())
        assert (await c.ready()).sources == ("b",)
        assert b.report.path == "storage"
        assert b.report.skipped == ("a: layout differs: its digests are blake2b, ours blake2b-2",)
