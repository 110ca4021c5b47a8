"""Whole cold starts that know what links and storage give: what they do about it, ask the store, and report."""

from __future__ import annotations

import time

import pytest

from coldstart.links.memory import STORAGE, Links
from coldstart.links.rates import Path, Rate
from coldstart.plan import Limits
from coldstart.testing.harness import MOUNT, FakeStorage, Fleet, Member, TroubledBus, fleet
from coldstart.testing.memories import layout_of
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime

LAYOUT = layout_of(16 << 20, chunk_bytes=1 << 20)
HOST = "127.0.0.1"
SECONDS = 1.0
"""What everybody's storage read takes."""
STORAGE_RATE = LAYOUT.nbytes / SECONDS


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


def links(link: float, storage: float = STORAGE_RATE) -> Links:
    known = {
        Path("me", "cpu", HOST, "cpu", "loopback"): Rate(link, "transfer", time.time() - 60),
        Path("me", "cpu", "", MOUNT, STORAGE): Rate(storage, "transfer", time.time() - 60),
    }
    return Links(None, "cpu", {path: rate for path, rate in known.items() if rate.bytes_per_second}, here="me")


def start(
    workers: Fleet, name: str, known: Links | None = None, bus: TroubledBus | None = None, peer_seconds: float = 16.0
) -> Member:
    storage = FakeStorage(workers.weights(LAYOUT), SECONDS)
    return workers.start(name, layout=LAYOUT, storage=storage, links=known, peer_seconds=peer_seconds, bus=bus)


async def test_a_worker_behind_a_slow_link_reads_storage_says_why_and_makes_room() -> None:
    async with fleet(Limits(floor=1e5)) as workers:
        await start(workers, "a").lends()
        bus = TroubledBus(workers.store)
        report = await start(workers, "b", links(1e6), bus).ready()
        (weighed,) = report.estimates
        assert (report.path, report.verified, report.against) == ("storage", True, "published truth")
        assert weighed.decision == "storage"
        assert weighed.storage == pytest.approx(1.0)
        assert weighed.waiting == pytest.approx(LAYOUT.nbytes / 1e6)
        assert weighed.took == pytest.approx(1.0, abs=0.3)
        assert report.detours == (f"a: waiting would take {weighed.waiting:.3g} s, storage 1 s",)
        assert bus.calls.count("admit") == 2
        key = report.shard
        lineage = (await bus.adverts(key))[0].layout
        assert (await bus.admit(key, lineage, "c", 1, 1.0)).readers == 0, "b has done"


async def test_a_worker_behind_a_quick_link_waits_and_reports_that_too() -> None:
    async with fleet(Limits(floor=1e5)) as workers:
        await start(workers, "a").lends()
        bus = TroubledBus(workers.store)
        report = await start(workers, "b", links(1e9), bus, peer_seconds=1.0).ready()
        assert report.path == "peer"
        assert report.estimates[0].decision == "wait"
        assert report.estimates[0].took is not None


async def test_a_store_that_does_not_admit_anybody_leaves_things_as_they_were() -> None:
    async with fleet(Limits(floor=1e5)) as workers:
        await start(workers, "a").lends()
        bus = TroubledBus(workers.store)
        bus.down.add("admit")
        report = await start(workers, "b", links(1e6), bus).ready()
        assert report.path == "peer"
        assert [each.decision for each in report.estimates] == ["full"]


@pytest.mark.parametrize("known", [links(0.0), links(1e6, 0.0)], ids=["no rate of the link", "no rate of storage"])
async def test_where_a_figure_is_missing_nobody_guesses(known: Links) -> None:
    """A transfer that was watched for long is a figure, too; this one is over before."""
    async with fleet(Limits(floor=1e5)) as workers:
        await start(workers, "a").lends()
        bus = TroubledBus(workers.store)
        report = await start(workers, "b", known, bus, peer_seconds=1.5).ready()
        assert (report.path, report.estimates) == ("peer", ())
        assert "admit" not in bus.calls


async def test_what_storage_gave_and_what_a_peer_gave_is_learnt_on_the_way() -> None:
    async with fleet(Limits(floor=1e5)) as workers:
        known = links(0.0, 0.0)
        await start(workers, "a", known).lends()
        assert known.storage(MOUNT) == pytest.approx(STORAGE_RATE, rel=0.1)
        later = links(0.0, 0.0)
        report = await start(workers, "b", later, peer_seconds=1.0).lends()
        adverts = {advert.worker: advert for advert in await TroubledBus(workers.store).adverts(report.shard)}
        assert adverts["a"].rate == 0
        assert adverts["b"].rate == later.received > 0
