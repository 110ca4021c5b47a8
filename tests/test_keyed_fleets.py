"""Fleets with keys over fakes in virtual time: strangers at the store cost a moment, never wrong weights."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from coldstart.bus.memory import MemoryBus
from coldstart.bus.notary import Notary
from coldstart.bus.sealed import SealedBus
from coldstart.group import READY, Answer, Group, Paper, Verdict
from coldstart.identity import lineage
from coldstart.messages import Offer, Refusal, encode
from coldstart.phases.states import Handshaking, Loading
from coldstart.plan import Limits
from coldstart.ports import Bus
from coldstart.refusals import Refusals
from coldstart.seals import Key, Keys
from coldstart.testing.bus_contract import advert
from coldstart.testing.harness import LAYOUT, PEER_SECONDS, SHARD, STORAGE_SECONDS, Fleet, fleet
from coldstart.testing.transports import Delayed
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime

OLD, NEW, FOREIGN = (Key(name, name.encode() * 8) for name in ("old1", "new2", "evil"))
KIN = lineage(LAYOUT, "blake2b", sealed=True)
A_MOMENT = 0.1
"""Seconds: nobody waits for an answer that a stranger cannot give."""


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


def keyed(*keys: Key, refusals: Refusals | None = None, sender: str = "worker") -> Callable[[Bus], Bus]:
    def around(bus: Bus) -> Bus:
        return SealedBus(bus, Notary(lambda: Keys(keys), "cs", sender, refusals or Refusals(), bus.time))

    return around


@asynccontextmanager
async def keyed_fleet(refusals: Refusals) -> AsyncIterator[Fleet]:
    async with fleet() as workers:
        workers.around = keyed(OLD, refusals=refusals)
        yield workers


async def test_weights_come_from_a_peer_and_from_a_loader_as_without_keys() -> None:
    refusals = Refusals()
    async with keyed_fleet(refusals) as workers:
        members = [workers.start(f"w{number}") for number in range(4)]
        reports = [await member.ready() for member in members]
        assert workers.storage_reads == 1
        assert sorted(report.path for report in reports) == ["peer", "peer", "peer", "storage"]
        assert max(report.seconds for report in reports) < STORAGE_SECONDS + 3 * PEER_SECONDS, "chunk by chunk"
        assert (await workers.start("late").ready()).path == "peer"
    assert refusals.counts() == {}


async def test_forged_adverts_are_left_at_once_and_storage_is_read() -> None:
    refusals = Refusals()
    async with keyed_fleet(refusals) as workers:
        raw = MemoryBus(workers.store)
        for number in range(5):
            await raw.advertise(SHARD.key, advert(f"imp{number}", layout=KIN, transports=("loopback",)), 600)
        report = await workers.start("a").ready()
        assert report.path == "storage"
        assert report.seconds < STORAGE_SECONDS + A_MOMENT
        assert [detour.partition(": ")[2] for detour in report.detours] == [
            "refused (its advert is not proven: it has no seal)"
        ] * Limits().sources
    assert set(refusals.counts()) == {"advert unsealed"}


async def test_a_real_source_is_found_behind_a_forged_one() -> None:
    async with keyed_fleet(Refusals()) as workers:
        await workers.start("a").lends()
        raw = MemoryBus(workers.store)
        imp = advert("imp", layout=KIN, transports=("loopback",), host="127.0.0.1", slots=9)
        await raw.advertise(SHARD.key, imp, 60)
        report = await workers.start("b").ready()
        assert (report.path, report.sources) == ("peer", ("a",))
        assert report.seconds < PEER_SECONDS + A_MOMENT


async def test_a_forged_truth_is_not_verified_against() -> None:
    async with keyed_fleet(Refusals()) as workers:
        a = workers.start("a")
        await a.lends()
        wrong = workers.weights(seed=2)
        truth = workers.store.shard(SHARD.key).truths[KIN]
        root, record = truth
        workers.store.shard(SHARD.key).truths[KIN] = (root, record.replace(record[-40:], bytes(40)))
        b = workers.start("b")
        report = await b.ready()
        assert b.content != wrong.content()
        assert report.path == "storage"
        assert any("not proven by a key" in detour for detour in report.detours)


@pytest.mark.parametrize("source_keyed", [True, False])
async def test_a_fleet_in_which_some_have_no_keys_reads_storage_and_says_why(source_keyed: bool) -> None:
    async with fleet() as workers:
        around = keyed(OLD)
        workers.around = around if source_keyed else lambda bus: bus
        await workers.start("a").lends()
        workers.around = around if not source_keyed else lambda bus: bus
        report = await workers.start("b").ready()
        assert (report.path, report.sources) == ("storage", ())
        assert report.seconds < STORAGE_SECONDS + A_MOMENT
        (why,) = report.skipped
        assert why.startswith("a: its messages are ")
        assert "authenticated" in why


async def test_another_key_is_no_key() -> None:
    async with fleet() as workers:
        workers.around = keyed(OLD)
        a = workers.start("a")
        await a.lends()
        workers.around = keyed(FOREIGN)
        report = await workers.start("b").ready()
        assert report.path == "storage"
        assert any("sealed with the key old1" in detour for detour in report.detours)
        workers.around = keyed(OLD)
        await anyio.sleep(3)
        assert (await workers.start("c").ready()).sources == ("a",), "the one with the foreign key has spoilt nothing"


async def test_letters_of_strangers_change_nothing() -> None:
    """They know the transfer and the number, because they read the store; and have no key."""
    refusals = Refusals()
    async with keyed_fleet(refusals) as workers:
        a = workers.start("a", transport=lambda inner: Delayed(inner, offer=0.5))
        await a.lends()
        b = workers.start("b")
        await b.reached(Handshaking)
        while not a.source.state.grants:
            await a.changed.wait()
        (grant,) = a.source.state.grants
        about = {"transfer": grant.transfer, "answer": grant.number + 1, "source": a.inbox}
        raw = MemoryBus(workers.store)
        offer = Offer(number=1, transport="loopback", ticket=b"", generation=1, **about)
        for number, message in enumerate((Refusal(reason="go away", **about), offer)):
            await raw.send(SHARD.key, grant.joiner, encode(message), f"n{number}")
        report = await b.ready()
        assert (report.path, report.detours) == ("peer", ())
    assert refusals.counts() == {"letter unsealed": 2}


async def test_keys_are_changed_in_a_running_fleet() -> None:
    now = [OLD]
    async with fleet() as workers:
        workers.around = lambda bus: SealedBus(bus, Notary(lambda: Keys(tuple(now)), "cs", "w", Refusals(), bus.time))
        await workers.start("w0").lends()
        for number, step in enumerate(([OLD, NEW], [NEW, OLD], [NEW]), 1):
            now[:] = step
            await anyio.sleep(5)
            report = await workers.start(f"w{number}").ready()
            assert (report.path, report.detours) == ("peer", ())
        assert workers.storage_reads == 1


async def test_a_group_acts_as_one_under_keys_and_forged_verdicts_are_not_heard() -> None:
    refusals = Refusals()
    async with keyed_fleet(refusals) as workers:
        limits = Limits(presence=4.0)
        first = workers.start("g0", group=Group("g", 2, 0), limits=limits)
        await first.reached(Loading)
        forged = Paper("1", "evil", 2, 4.0, (Answer(READY, True),), (Verdict(READY, True),))
        workers.store.ledger.vote("g", forged)
        second = workers.start("g1", group=Group("g", 2, 1), limits=limits)
        reports = [await member.ready() for member in (first, second)]
        assert {report.path for report in reports} == {"storage"}
        group = reports[0].group
        assert group is not None
        assert all(verdict.yes for verdict in group.verdicts if verdict.question == READY)
    assert set(refusals.counts()) <= {"vote unproven"}
