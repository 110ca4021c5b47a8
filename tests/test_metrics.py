"""What is counted of a cold start and of a source, as an operator's system gets it; each fault under one cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import anyio
import pytest
import torch
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

import coldstart
from coldstart import config, events
from coldstart.instruments import Instruments
from coldstart.links.rates import Floors, Moved, Passage
from coldstart.machine import initial, step
from coldstart.metrics import JoinerMetrics, SourceMetrics
from coldstart.phases.states import Gone
from coldstart.plan import Limits
from coldstart.reasons import Cause, Denial
from coldstart.recorder import Recorder
from coldstart.runner import Entry
from coldstart.testing.harness import LAYOUT, FakeStorage, Fleet, Member, TroubledBus, Wrap, fleet
from coldstart.testing.transports import (
    Breaking,
    Corrupting,
    Delayed,
    Dialling,
    Short,
    Stalling,
    Unoffering,
    WritingLate,
)
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime

Write = Callable[..., Path]


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


class Collected:
    """What a reader sees: values by name and labels, without those that are 0."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        self.values: dict[str, dict[str, float]] = {}
        data = reader.get_metrics_data()
        scopes = [scope for each in data.resource_metrics for scope in each.scope_metrics] if data is not None else []
        for metric in (metric for scope in scopes for metric in scope.metrics):
            for point in metric.data.data_points:
                labels = ",".join(str(value) for value in (point.attributes or {}).values())
                value = point.count if isinstance(point, HistogramDataPoint) else getattr(point, "value", 0)
                if value:
                    self.values.setdefault(metric.name.removeprefix("coldstart."), {})[labels] = value

    def __getitem__(self, name: str) -> Mapping[str, float]:
        return self.values.get(name, {})


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def provider(reader: InMemoryMetricReader) -> Iterator[MeterProvider]:
    provider = MeterProvider([reader], shutdown_on_exit=False)
    yield provider
    provider.shutdown()


Counted = Callable[[Member], Collected]


@pytest.fixture
def counted(provider: MeterProvider, reader: InMemoryMetricReader) -> Counted:
    """What is counted of all steps of a member of a fleet."""

    def count(member: Member) -> Collected:
        instruments = Instruments(provider)
        joiner = JoinerMetrics(instruments, "s", lambda: member.report)
        source = SourceMetrics(instruments, "s", {member.transport.name: member.transport})
        for entry in member.entries:
            joiner(entry)
        for lent in member.lent:
            source(lent)
        return Collected(reader)

    return count


# --------------------------------------------------------------------------------- causes, one by one


FAULTS: Sequence[tuple[str, Wrap, Cause]] = (
    ("a closed connection", lambda inner: Breaking(inner, 200_000), Cause.TRANSPORT),
    ("a pull that ends early", lambda inner: Short(inner, 200_000), Cause.TRANSPORT),
    ("nothing comes any more", lambda inner: Stalling(inner, 200_000), Cause.STALLED),
    ("wrong bytes", lambda inner: Corrupting(inner, 3), Cause.DIGEST),
    ("a pull that may write late", lambda inner: WritingLate(inner, 200_000), Cause.STALLED),
    ("no connection in time", lambda inner: Dialling(inner, 1000.0), Cause.SILENT),
)


@pytest.mark.parametrize(("fault", "cause"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
async def test_each_fault_of_a_transfer_is_counted_under_its_cause(fault: Wrap, cause: Cause, counted: Counted) -> None:
    async with fleet() as workers:
        await workers.start("a").lends()
        b = workers.start("b", transport=fault)
        await b.ready()
        seen = counted(b)
    assert seen["fallbacks"] == {cause: 1}
    assert seen["detours"][cause] >= 1
    assert set(seen["digest.failures"]) == ({"peer"} if cause is Cause.DIGEST else set())
    assert seen["starts"] == {f"served,{b.report.path}": 1}


async def test_sources_that_refuse_stay_silent_or_cannot_be_found(counted: Counted) -> None:
    async with fleet() as workers:
        await workers.start("a", transport=Unoffering).lends()
        b = workers.start("b")
        await b.ready()
        assert counted(b)["fallbacks"] == {Cause.REFUSED: 1}


async def test_a_source_that_takes_too_long_to_answer(counted: Counted) -> None:
    async with fleet() as workers:
        await workers.start("a", transport=lambda inner: Delayed(inner, offer=60.0)).lends()
        b = workers.start("b")
        await b.ready()
        assert counted(b)["fallbacks"] == {Cause.SILENT: 1}


@pytest.mark.parametrize("slow", [False, True])
async def test_a_store_that_is_down_or_slow(slow: bool, counted: Counted) -> None:
    async with fleet() as workers:
        await workers.start("a").lends()
        bus = TroubledBus(workers.store)
        if slow:
            bus.slow["claim"] = 60.0
        else:
            bus.down.add("claim")
        b = workers.start("b", bus=bus)
        await b.ready()
        assert counted(b)["fallbacks"] == {Cause.STORE: 1}


async def test_every_source_stays_busy(counted: Counted) -> None:
    async with fleet() as workers:
        await lending(workers, slots=1)
        workers.start("slow", transport=lambda inner: Delayed(inner, pull=4.0), limits=Limits(patience=60.0))
        await anyio.sleep(0.5)
        b = workers.start("b", limits=Limits(patience=1.0, share=60.0))
        await b.ready()
        assert counted(b)["fallbacks"] == {Cause.BUSY: 1}


async def lending(workers: Fleet, slots: int = 2) -> Member:
    member = workers.start("a", slots=slots)
    await member.lends()
    return member


async def test_who_was_elected_to_read_storage_has_not_fallen_back(counted: Counted) -> None:
    async with fleet() as workers:
        seen = counted(await lending(workers))
    assert seen["fallbacks"] == {}
    assert seen["detours"] == {}
    assert seen["transferred"] == {"storage,received": float(workers.members[0].memory.layout.nbytes)}


# ------------------------------------------------------------------------------------ what a source shows


async def test_a_source_shows_its_slots_while_it_lends_and_takes_them_back(
    provider: MeterProvider, reader: InMemoryMetricReader
) -> None:
    async with fleet() as workers:
        a = await lending(workers)
        b = workers.start("b", transport=lambda inner: Delayed(inner, pull=2.0))
        await anyio.sleep(1.0)
        source = SourceMetrics(Instruments(provider), "s", {})
        for entry in a.lent:
            source(entry)
        now = Collected(reader)
        assert (now["slots"], now["slots.used"], now["holders"]) == ({"": 2}, {"": 1}, {"s": 1})
        await b.ready()
        source.end()
    gone = Collected(reader)
    assert (gone["slots"], gone["slots.used"], gone["holders"]) == ({}, {}, {})


async def test_what_a_source_cannot_count_is_counted_once_as_its_joiner_says(counted: Counted) -> None:
    async with fleet() as workers:
        a = await lending(workers)
        b = workers.start("b")
        await b.ready()
        assert b.report.path == "peer"
        with anyio.fail_after(10):
            while not any(isinstance(entry.event, events.GrantClosed) for entry in a.lent):  # noqa: ASYNC110
                await anyio.sleep(0.1)
        sent = counted(a)["transferred"][f"{b.transport.name},sent"]
        assert sent == a.memory.layout.nbytes


async def test_damaged_weights_are_a_digest_failure_of_our_own_and_are_withheld(counted: Counted) -> None:
    async with fleet() as workers:
        a = await lending(workers)
        a.memory.storages[0][0] ^= 1
        await workers.start("b").lends()
        seen = counted(a)
        a.storage.held.storages[0][0] ^= 1  # the fleet's own check takes it for what storage holds
    assert seen["digest.failures"] == {"own": 1}
    assert seen["withholdings"] == {"damaged": 1}
    assert (seen["withheld"], seen["holders"]) == ({"s": 1}, {})


async def test_refusals_are_counted_by_reason(counted: Counted) -> None:
    async with fleet() as workers:
        a = workers.start("a", transport=Unoffering)
        await a.lends()
        await workers.start("b").ready()
        assert counted(a)["refusals"] == {Denial.TRANSPORT: 1}


async def test_storage_readers_that_disagree_are_a_truth_conflict(counted: Counted) -> None:
    async with fleet() as workers:
        bus = TroubledBus(workers.store)
        bus.down.update({"claim", "advertise", "publish_truth", "state"})
        other = workers.start("other", bus=bus, storage=FakeStorage(workers.weights(seed=2)))
        await other.ready()
        await lending(workers)
        bus.down.clear()
        await anyio.sleep(20.0)
        seen = counted(other)
    assert seen["truth.conflicts"] == {"": 1}, "however often it is told of it"


# ------------------------------------------------------------------------------------------- floors


def test_a_transfer_below_a_floor_is_counted_by_floor(provider: MeterProvider, reader: InMemoryMetricReader) -> None:
    report = Recorder("w", "k", "m", LAYOUT, 0.0).report
    joiner = JoinerMetrics(Instruments(provider), "s", report, ("tcp",), Floors(gbps=1.0, share=0.5))
    state, passage = initial(Limits()), Passage("a", "tcp", "", Moved(1 << 30, 2.0), 1e9, "probe")
    for event in (events.PullEnded(1, passage=passage), events.PullEnded(1, passage=passage)):
        joiner(Entry(1, 0.0, event, state, state, ()))
    gone, _ = step(state, events.DrainRequested(), 0.0)
    assert isinstance(gone, Gone)
    joiner(Entry(3, 0.0, events.DrainRequested(), state, gone, ()))
    seen = Collected(reader)
    assert seen["floor.misses"] == {"gbps,tcp": 1}, "0.54 GB/s is over half of what the link gives"
    assert (seen["transfer.rate"], seen["link.share"]) == ({"tcp": 1}, {"tcp": 1})
    assert seen["starts"] == {"cancelled,none": 1}


# -------------------------------------------------------------------------------------- the real thing


class TestRealWorkers:
    """Through ``coldstart.join``, on sockets and a real store, with the provider that a host has set."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture(autouse=True)
    def host(self, provider: MeterProvider, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(metrics, "get_meter_provider", lambda: provider)

    async def test_joiner_and_source(
        self, reader: InMemoryMetricReader, tmp_path: Path, write_checkpoint: Write
    ) -> None:
        checkpoint = write_checkpoint(tmp_path / "model", mib=8)
        settings = config.load({"directory": str(tmp_path / "v"), "slots": 3}, environ={})
        async with coldstart.join(checkpoint, skeleton="tensors", worker="a", settings=settings) as a:
            async with coldstart.join(checkpoint, skeleton="tensors", worker="b", settings=settings) as b:
                with anyio.fail_after(20):
                    while sum((seen := Collected(reader))["holders"].values()) < 2:
                        await b._session.changed.wait()
            left = Collected(reader)
        shard, size = a.report.model, b.report.bytes_total
        assert seen["starts"] == {"served,storage": 1, "served,peer": 1}
        assert seen["start.duration"] == {"storage": 1, "peer": 1}
        assert {"build", "discover", "handshake", "transfer", "fallback", "verify"} == set(seen["phase.duration"])
        assert seen["transferred"]["tcp,received"] >= size
        assert left["transferred"]["tcp,sent"] == seen["transferred"]["tcp,received"]
        assert (seen["slots"], left["slots"]) == ({"": 6}, {"": 3})
        assert (seen["holders"], seen["serving"]) == ({shard: 2}, {shard: 2})
        assert (left["holders"], left["serving"]) == ({shard: 1}, {shard: 1})
        assert set(seen["transfer.rate"]) == {"tcp", "storage"}
        assert set(seen["link.share"]) == {"tcp"}
        after = Collected(reader)
        assert (after["slots"], after["holders"], after["serving"]) == ({}, {}, {})

    async def test_a_start_that_has_no_machine_yet_is_counted_as_failed(
        self, reader: InMemoryMetricReader, tmp_path: Path
    ) -> None:
        settings = config.load({"redis": "none"}, environ={})
        with pytest.raises(coldstart.CheckpointError):
            async with coldstart.join(tmp_path / "nothing", skeleton="tensors", settings=settings):
                raise AssertionError("not reached")
        seen = Collected(reader)
        assert (seen["starts"], seen["failures"]) == ({"failed,none": 1}, {"build": 1})

    async def test_a_changed_weight_is_withheld_and_counted(
        self, reader: InMemoryMetricReader, tmp_path: Path, write_checkpoint: Write
    ) -> None:
        settings = config.load({"directory": str(tmp_path / "v"), "scrub": 0.3}, environ={})
        async with coldstart.join(
            write_checkpoint(tmp_path / "m"), skeleton="tensors", worker="a", settings=settings
        ) as replica:
            with torch.no_grad():
                replica.module.get_parameter("scale").add_(1)
            with anyio.fail_after(20):
                while not replica.withheld:
                    await replica._session.changed.wait()
            seen = Collected(reader)
        assert (seen["withholdings"], seen["withheld"]) == ({"damaged": 1}, {replica.report.model: 1})


def test_labels_come_from_closed_sets_alone(provider: MeterProvider, reader: InMemoryMetricReader) -> None:
    """Every counter is shown from the beginning; what it is labelled with is no text of anybody's."""
    Instruments(provider).begin(("tcp", "other"))
    data = reader.get_metrics_data()
    assert data is not None
    points = [point for each in data.resource_metrics[0].scope_metrics[0].metrics for point in each.data.data_points]
    assert {getattr(point, "value", None) for point in points} == {0}
    assert {key for point in points for key in (point.attributes or {})} <= {
        "reason", "origin", "floor", "transport", "outcome", "path", "direction",
    }  # fmt: skip
    assert len(points) < 80
