"""Wrong bytes, and weights that change: who is told, who is believed, and what is lent afterwards."""

from __future__ import annotations

import anyio
import pytest

from coldstart.phases.states import Checking
from coldstart.ports import Advert
from coldstart.source import Mode
from coldstart.testing.harness import CHUNK, LAYOUT, SHARD, Fleet, Member, TroubledBus, fleet
from coldstart.testing.transports import Corrupting
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


async def lender(workers: Fleet, name: str) -> Member:
    member = workers.start(name)
    await member.lends()
    return member


def advert(workers: Fleet, worker: str) -> Advert:
    return next(found for found in workers.store.ledger.adverts(SHARD.key) if found.worker == worker)


def damage(member: Member) -> None:
    member.memory.storages[0][0] ^= 1


async def test_a_sound_source_that_was_doubted_is_passed_over_until_it_has_proven_itself() -> None:
    async with fleet() as workers:
        a = await lender(workers, "a")
        b = workers.start("b", transport=lambda inner: Corrupting(inner, 1))
        report = await b.ready()
        assert any(reason.startswith("a: chunk") for reason in report.detours)
        await anyio.sleep(1.0)
        assert (advert(workers, "a").struck, advert(workers, "a").proof) == (False, 1)
        assert a.source.state.generation == 1, "what others read from it meanwhile was right"
        assert (await workers.start("c").ready()).path == "peer"


async def test_a_source_whose_memory_is_damaged_finds_out_and_lends_no_more() -> None:
    async with fleet() as workers:
        a = await lender(workers, "a")
        damage(a)
        report = await workers.start("b").lends()
        assert report.path in ("storage", "mixed")
        assert a.source.state.mode is Mode.WITHHELD
        assert advert(workers, "a").have == 0
        later = await workers.start("c").ready()
        assert (later.path, later.sources, later.detours) == ("peer", ("b",), ())
        a.storage.held.storages[0][0] ^= 1  # the fleet's own check takes it for what storage holds


async def test_a_damaged_source_is_not_given_to_the_next_joiner_even_before_it_knows() -> None:
    async with fleet() as workers:
        a, b = await lender(workers, "a"), await lender(workers, "b")
        damage(a)
        a.node.source.post = lambda event: None  # type: ignore[method-assign]  # it does not even read its mail
        starts = [workers.start(f"c{number}") for number in range(4)]
        reports = [await start.ready() for start in starts]
        assert sum(any("wrong bytes" in reason for reason in report.detours) for report in reports) <= 2, "its slots"
        assert advert(workers, "a").struck
        again = await workers.start("d").ready()
        assert (again.sources[0] != "a", again.detours) == (True, ())
        assert b.source.state.mode is Mode.OPEN
        a.storage.held.storages[0][0] ^= 1


async def test_readers_are_refused_when_weights_change_and_keep_what_was_verified() -> None:
    async with fleet() as workers:
        a = await lender(workers, "a")
        b = workers.start("b", peer_seconds=5.0)
        while b.memory.content()[:CHUNK] != b.storage.held.content()[:CHUNK]:
            await b.changed.wait()
        a.node.withhold()
        report = await b.ready()
        assert any(reason.startswith("a: revoked (weights changed)") for reason in report.detours)
        assert report.bytes_peer > 0
        assert not a.node.read


async def test_a_reader_that_ended_just_before_the_change_keeps_what_it_has_proven() -> None:
    """What the source holds now is none of its own: every chunk equals the truth in its own memory."""
    async with fleet() as workers:
        a = await lender(workers, "a")
        bus = TroubledBus(workers.store)
        bus.slow["release"] = 1.0
        b = workers.start("b", bus=bus, on_enter={Checking: a.node.withhold})
        report = await b.ready()
        assert "a: weights of a changed while they were read" in report.detours
        assert (report.path, report.sources, report.bytes_peer) == ("peer", ("a",), LAYOUT.payload)
        assert report.verified
        assert b.storage.reads == []


async def test_settled_weights_are_lent_again_if_they_are_what_they_were() -> None:
    async with fleet() as workers:
        a = await lender(workers, "a")
        a.node.withhold()
        await anyio.sleep(0.1)
        damage(a)
        a.node.settle()
        await anyio.sleep(1.0)
        assert a.source.state.mode is Mode.WITHHELD
        damage(a)
        a.node.settle()
        await anyio.sleep(1.0)
        assert a.source.state.mode is Mode.OPEN
        assert (await workers.start("b").ready()).path == "peer"
