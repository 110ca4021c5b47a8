"""``coldstart.join`` as a host uses it: real Valkey, real sockets, real weights, one process."""

from __future__ import annotations

import asyncio
import gc
import signal
import weakref
from pathlib import Path

import anyio
import pytest
import torch
from blockbuster import blockbuster_ctx
from safetensors.torch import load_file, save_file
from torch import nn

import coldstart
from coldstart import config, wiring
from coldstart.config import Settings
from coldstart.errors import ColdStartFailed, ConfigError, TruthConflict
from coldstart.ports import Cursor
from coldstart.report import Progress
from coldstart.skeletons.module import ModuleSkeleton


def assert_loaded(module: nn.Module, checkpoint: Path) -> None:
    expected = load_file(checkpoint / "model.safetensors")
    state = module.state_dict()
    assert state.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(state[name], tensor), name


async def test_first_reads_storage_second_pulls_from_it(settings: Settings, checkpoint: Path) -> None:
    async with coldstart.join(checkpoint, skeleton="tensors", worker="a", settings=settings) as first:
        assert first.report.path == "storage"
        assert first.report.verified
        assert first.report.against == "own storage read"
        async with coldstart.join(checkpoint, skeleton="tensors", worker="b", settings=settings) as second:
            report = second.report
            assert (report.path, report.sources, report.transport) == ("peer", ("a",), "tcp")
            assert report.verified
            assert report.against == "published truth"
            assert report.bytes_peer == report.bytes_total
            assert report.root == first.report.root != ""
            assert {"build", "discover", "handshake", "transfer", "verify"} <= report.phases.keys()
            assert_loaded(second.module, checkpoint)
        assert second.phase is coldstart.Phase.GONE
        assert_loaded(second.module, checkpoint)
    assert_loaded(first.module, checkpoint)


async def test_a_joiner_becomes_a_source(settings: Settings, checkpoint: Path) -> None:
    async with (
        coldstart.join(checkpoint, skeleton="tensors", worker="a", settings=settings) as first,
        coldstart.join(checkpoint, skeleton="tensors", worker="b", settings=settings),
    ):
        await first.drain()
        async with coldstart.join(checkpoint, skeleton="tensors", worker="c", settings=settings) as third:
            assert third.report.sources == ("b",)
            assert_loaded(third.module, checkpoint)


async def test_many_at_once_read_storage_once(settings: Settings, checkpoint: Path) -> None:
    reports: dict[str, coldstart.Report] = {}
    everybody = anyio.Event()

    async def start(name: str) -> None:
        async with coldstart.join(checkpoint, skeleton="tensors", worker=name, settings=settings) as replica:
            reports[name] = replica.report
            if len(reports) == 6:
                everybody.set()
            await everybody.wait()
            assert_loaded(replica.module, checkpoint)

    async with anyio.create_task_group() as tasks:
        for index in range(6):
            tasks.start_soon(start, f"w{index}")
    paths = sorted(report.path for report in reports.values())
    assert paths == ["peer"] * 5 + ["storage"]


async def test_progress_by_iterator_and_callback(settings: Settings, checkpoint: Path) -> None:
    called: list[Progress] = []
    async with coldstart.join(
        checkpoint, skeleton="tensors", settings=settings, on_progress=called.append, wait=False
    ) as replica:
        seen = [step async for step in replica.progress()]
        report = await replica.ready()
    assert seen[-1].phase is coldstart.Phase.SERVE
    assert seen[-1].bytes_verified == seen[-1].bytes_total == report.bytes_total
    assert [step.bytes_verified for step in seen] == sorted(step.bytes_verified for step in seen)
    assert {"DISCOVER", "FALLBACK", "SERVE"} <= {step.phase.value for step in called}


async def test_the_host_may_start_before_the_weights_are_there(settings: Settings, checkpoint: Path) -> None:
    async with coldstart.join(checkpoint, skeleton="tensors", settings=settings, wait=False) as replica:
        with pytest.raises(ConfigError, match="not built yet"):
            _ = replica.module
        assert replica.phase is coldstart.Phase.IDLE
        await replica.ready()
        assert_loaded(replica.module, checkpoint)


async def test_two_unnamed_replicas_of_one_process_are_two_workers(settings: Settings, checkpoint: Path) -> None:
    async with (
        coldstart.join(checkpoint, skeleton="tensors", settings=settings) as first,
        coldstart.join(checkpoint, skeleton="tensors", settings=settings) as second,
    ):
        assert first.worker != second.worker
        assert second.report.sources == (first.worker,)


async def test_draining_before_serving_ends_the_start(settings: Settings, checkpoint: Path) -> None:
    async with coldstart.join(checkpoint, skeleton="tensors", settings=settings, wait=False) as replica:
        with anyio.fail_after(10):
            await replica.drain()
        with pytest.raises(coldstart.ColdstartError, match="drained before"):
            await replica.ready()


async def test_the_weights_memory_is_free_once_nobody_holds_the_module(settings: Settings, checkpoint: Path) -> None:
    """At once, without waiting for the garbage collector: device memory is dear."""

    async def start_and_leave() -> list[weakref.ref[object]]:
        async with (
            coldstart.join(checkpoint, skeleton="tensors", worker="a", settings=settings) as first,
            coldstart.join(checkpoint, skeleton="tensors", worker="b", settings=settings) as second,
        ):
            assert (first.report.path, second.report.path) == ("storage", "peer")
            return [weakref.ref(replica.built.arena) for replica in (first, second)]

    gc.collect()
    gc.disable()
    try:
        held = await start_and_leave()
        assert [arena() for arena in held] == [None, None]
    finally:
        gc.enable()


async def test_cancelling_the_host_ends_everything_soon(settings: Settings, checkpoint: Path) -> None:
    async with coldstart.join(checkpoint, skeleton="tensors", worker="a", settings=settings):
        before = len(asyncio.all_tasks())
        with anyio.move_on_after(5) as scope:
            async with coldstart.join(checkpoint, skeleton="tensors", worker="b", settings=settings):
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert len(asyncio.all_tasks()) <= before


async def test_a_start_can_be_cancelled_at_any_time(settings: Settings, checkpoint: Path) -> None:
    """Cancelled after so many loop turns: nothing hangs, nothing is left."""
    before = len(asyncio.all_tasks())
    for turns in (0, 1, 5, 20, 60, 150):
        async with anyio.create_task_group() as tasks:

            async def start() -> None:
                async with coldstart.join(checkpoint, skeleton="tensors", settings=settings):
                    await anyio.sleep_forever()

            tasks.start_soon(start)
            for _ in range(turns):
                await anyio.sleep(0.001)
            tasks.cancel_scope.cancel()
        assert len(asyncio.all_tasks()) <= before, turns


async def test_no_signal_handlers(settings: Settings, checkpoint: Path) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    async with coldstart.join(checkpoint, skeleton="tensors", settings=settings):
        assert [signal.getsignal(number) for number in numbers] == handlers


async def test_nothing_blocks_the_loop(settings: Settings, checkpoint: Path) -> None:
    """A guard raises where coldstart makes a blocking call on the loop's thread: files, sockets, sleeps."""
    with blockbuster_ctx("coldstart"):
        async with (
            coldstart.join(checkpoint, skeleton="tensors", worker="a", settings=settings),
            coldstart.join(checkpoint, skeleton="tensors", worker="b", settings=settings) as second,
        ):
            assert second.report.path == "peer"
            await second.drain()


async def test_any_module_factory(settings: Settings, tmp_path: Path) -> None:
    def make() -> nn.Module:
        module = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 8, bias=False))
        module.register_buffer("scratch", torch.arange(5.0), persistent=False)
        return module

    model = make()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    x = torch.randn(4, 64)
    expected = model.eval()(x)
    async with (
        coldstart.join(tmp_path, skeleton=make, worker="a", settings=settings) as first,
        coldstart.join(tmp_path, skeleton=make, worker="b", settings=settings) as second,
    ):
        assert second.report.path == "peer"
        for replica in (first, second):
            module = replica.module.eval()
            assert torch.equal(module.scratch, torch.arange(5.0))
            assert torch.equal(module(x), expected)


async def test_other_layouts_are_refused_in_words(settings: Settings, tmp_path: Path) -> None:
    """Same files, another module: the layouts differ, the joiner says how and reads storage."""
    model = nn.Linear(64, 64)
    save_file(model.state_dict(), tmp_path / "model.safetensors")

    def transposed() -> nn.Module:
        module = nn.Linear(64, 64)
        module.weight = nn.Parameter(module.weight.detach().t())
        return module

    one = ModuleSkeleton(lambda: nn.Linear(64, 64), name="linear")
    other = ModuleSkeleton(transposed, name="linear")
    async with coldstart.join(tmp_path, skeleton=one, worker="a", settings=settings) as first:
        await advertised(settings, first.report.shard)
        async with coldstart.join(tmp_path, skeleton=other, worker="b", settings=settings) as second:
            assert second.report.path == "storage"
            assert any("layout differs: weight: here float32 64x64 stride" in why for why in second.report.skipped)


async def advertised(settings: Settings, shard: str) -> None:
    """Wait until somebody's advert of ``shard`` is in the store."""
    with anyio.fail_after(5):
        async with wiring.open_bus(settings) as bus:
            while not await bus.adverts(shard):  # noqa: ASYNC110 - a write of another connection raises no event here
                await anyio.sleep(0.01)


async def test_no_coordination_means_storage_and_says_so(checkpoint: Path) -> None:
    settings = config.load({"redis": "none"}, environ={})
    async with coldstart.join(checkpoint, skeleton="tensors", settings=settings) as replica:
        assert replica.report.path == "storage"
        assert replica.report.detours[0] == "coordination is switched off"


async def test_a_refused_store_means_storage_and_says_so(checkpoint: Path) -> None:
    settings = config.load({"redis": "redis://127.0.0.1:1"}, environ={})
    async with coldstart.join(checkpoint, skeleton="tensors", settings=settings) as replica:
        assert replica.report.path == "storage"
        assert "127.0.0.1:1" in replica.report.detours[0]
        assert replica.report.verified


async def test_a_malformed_store_url_is_the_operators_error(checkpoint: Path) -> None:
    settings = config.load({"redis": "http://store"}, environ={})
    with pytest.raises(ConfigError, match=r"scheme .http."):
        async with coldstart.join(checkpoint, skeleton="tensors", settings=settings):
            raise AssertionError("not reached")


async def test_storage_that_disagrees_with_the_truth_never_serves(settings: Settings, checkpoint: Path) -> None:
    """One bit of the file flips after the first worker has read it, where no sample of the identity looks."""
    async with coldstart.join(checkpoint, skeleton="tensors", worker="a", settings=settings) as first:
        key = first.report.shard
        await first.drain()
        flipped = flip_a_bit_outside_the_samples(checkpoint / "model.safetensors", key, settings)
        assert flipped
        with pytest.raises(TruthConflict, match="differs from the published truth"):
            async with coldstart.join(checkpoint, skeleton="tensors", worker="b", settings=settings):
                raise AssertionError("not reached")


def flip_a_bit_outside_the_samples(file: Path, key: str, settings: Settings) -> bool:
    """Flip one bit such that the checkpoint's fingerprint stays the same."""
    from coldstart.checkpoint import read_checkpoint

    before = read_checkpoint(file.parent).fingerprint
    for offset in range(2_000_000, 4_000_000, 50_000):
        content = bytearray(file.read_bytes())
        content[offset] ^= 1
        file.write_bytes(content)
        if read_checkpoint(file.parent).fingerprint == before:
            return True
        content[offset] ^= 1
        file.write_bytes(content)
    return False


async def test_storage_that_breaks_is_a_named_failure(settings: Settings, checkpoint: Path) -> None:
    """The file is cut short between reading its header and reading its weights."""
    from coldstart.skeletons import assembly

    original = assembly.StorageReader.read

    async def cut(self: assembly.StorageReader, spans: object, landed: object) -> None:
        file = checkpoint / "model.safetensors"
        file.write_bytes(file.read_bytes()[:1_000_000])
        await original(self, spans, landed)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly.StorageReader, "read", cut)
        with pytest.raises(ColdStartFailed, match=r"model\.safetensors"):
            async with coldstart.join(checkpoint, skeleton="tensors", settings=settings):
                raise AssertionError("not reached")


async def test_weights_are_not_lent_while_they_change_and_again_only_as_they_were(
    settings: Settings, checkpoint: Path
) -> None:
    async with coldstart.join(checkpoint, skeleton="tensors", worker="a", settings=settings) as first:
        name, weight = next(iter(first.module.state_dict().items()))
        with torch.no_grad():
            async with first.changing():
                weight.add_(1)
                assert first.lending == 0
            async with coldstart.join(checkpoint, skeleton="tensors", worker="b", settings=settings) as second:
                assert second.report.path == "storage", "nobody is sent to weights that are others now"
                await second.drain()
            async with first.changing():
                weight.copy_(load_file(checkpoint / "model.safetensors")[name])
            await until_lent_by("a", settings)
            async with coldstart.join(checkpoint, skeleton="tensors", worker="c", settings=settings) as third:
                assert third.report.sources == ("a",)


async def test_weights_that_are_not_here_cannot_be_changed(settings: Settings, checkpoint: Path) -> None:
    async with coldstart.join(checkpoint, skeleton="tensors", settings=settings, wait=False) as replica:
        with pytest.raises(ConfigError, match="only while serving"):
            async with replica.changing():
                pass
        await replica.ready()


async def until_lent_by(worker: str, settings: Settings) -> None:
    """Wait until chunks can be had from ``worker``."""
    async with wiring.open_bus(settings) as bus:
        (shard,) = await bus.shards()
        cursor = Cursor()
        with anyio.fail_after(10):
            while not any(advert.worker == worker and advert.have for advert in await bus.adverts(shard)):
                cursor = (await bus.listen(shard, "nobody", cursor, 2.0)).cursor
