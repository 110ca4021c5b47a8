"""``coldstart.join`` as a host uses it: real Valkey, real sockets, real weights, one process."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import anyio
import msgspec
import pytest
import torch
from blockbuster import blockbuster_ctx
from safetensors.torch import load_file, save_file
from torch import nn

import coldstart
from coldstart import config, wiring
from coldstart.config import Settings
from coldstart.errors import ColdstartError, ColdStartFailed, ConfigError, SkeletonError, TruthConflict, UnknownPlugin
from coldstart.ports import Checkpoint, Cursor, Rank, TransportSettings
from coldstart.report import Progress
from coldstart.skeletons.module import ModuleSkeleton
from coldstart.transports import tcp

Write = Callable[..., Path]


@pytest.fixture
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return config.load({"directory": str(tmp_path_factory.mktemp("v")), "drain": 2.0}, environ={})


@pytest.fixture
def checkpoint(tmp_path: Path, write_checkpoint: Write) -> Path:
    return write_checkpoint(tmp_path / "model")


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


async def test_an_error_of_the_host_comes_out_as_it_was(settings: Settings, checkpoint: Path) -> None:
    class HostError(Exception):
        pass

    error = HostError("mine")
    with pytest.raises(HostError) as caught:
        async with coldstart.join(checkpoint, skeleton="tensors", settings=settings):
            raise error
    assert caught.value is error


@pytest.mark.parametrize("handled", [True, False])
async def test_a_task_group_of_the_host_may_fail_inside_the_block(
    handled: bool, settings: Settings, checkpoint: Path
) -> None:
    """Before Python 3.13 such a failure leaves the host's task marked as being cancelled."""

    async def fail() -> None:
        raise KeyError("mine")

    async def host() -> None:
        async with coldstart.join(checkpoint, skeleton="tensors", settings=settings):
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(fail())
            except* KeyError:
                if not handled:
                    raise

    if handled:
        await host()
    else:
        with pytest.raises(ExceptionGroup) as caught:
            await host()
        assert isinstance(caught.value.exceptions[0], KeyError)


async def test_a_callback_that_raises_costs_nothing(settings: Settings, checkpoint: Path) -> None:
    calls: list[Progress] = []

    def broken(progress: Progress) -> None:
        calls.append(progress)
        raise ZeroDivisionError

    async with coldstart.join(checkpoint, skeleton="tensors", settings=settings, on_progress=broken) as replica:
        assert replica.report.verified
    assert len(calls) == 1


async def test_a_failed_build_is_seen_by_whoever_watches(settings: Settings, tmp_path: Path) -> None:
    async with coldstart.join(tmp_path / "nothing", settings=settings, wait=False) as replica:
        seen = [step async for step in replica.progress()]
        assert seen[-1].phase is replica.phase is coldstart.Phase.FAILED
        assert "no checkpoint at" in seen[-1].reason
        with pytest.raises(coldstart.CheckpointError):
            await replica.ready()


class Slow:
    """A factory that takes until it is released."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def __call__(self) -> nn.Module:
        self.release.wait(20)
        return nn.Linear(4, 4)


async def test_a_host_that_fails_at_once_leaves_nothing_behind(settings: Settings, checkpoint: Path) -> None:
    before = asyncio.all_tasks()
    with pytest.raises(ConfigError, match="not built yet"):
        async with coldstart.join(checkpoint, skeleton="tensors", settings=settings, wait=False) as replica:
            _ = replica.module
    assert asyncio.all_tasks() == before
    assert replica.phase is not coldstart.Phase.SERVE


async def test_settings_made_by_hand_are_checked_too(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="slots is 0"):
        async with coldstart.join(checkpoint, settings=Settings(slots=0)):
            raise AssertionError("not reached")


async def test_a_loader_that_cannot_be_stopped_does_not_keep_the_rest_open(
    settings: Settings, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store's connections and sockets are released although a thread is still at work."""
    release = threading.Event()
    closed: list[bool] = []
    close = wiring.Wired.close

    async def noted(self: wiring.Wired) -> None:
        await close(self)
        closed.append(True)

    monkeypatch.setattr(wiring.Wired, "close", noted)

    class Stubborn(ModuleSkeleton[nn.Module]):
        def stored_names(self, module: nn.Module, checkpoint: object) -> None:
            return None

        def load(self, module: nn.Module, checkpoint: object) -> None:
            release.wait(20)

    async def host() -> None:
        skeleton = Stubborn(lambda: nn.Linear(4, 4), name="s")
        async with coldstart.join(checkpoint, skeleton=skeleton, settings=settings, wait=False) as replica:
            async for step in replica.progress():
                if step.phase is coldstart.Phase.FALLBACK:
                    raise ZeroDivisionError

    try:
        with pytest.raises(ZeroDivisionError):
            await host()
        assert closed == [True]
    finally:
        release.set()


async def test_a_transport_that_nobody_chose_may_break_as_it_opens(
    settings: Settings, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: tcp.TcpFactory, own: TransportSettings) -> tcp.TcpTransport:
        raise ImportError("libwarp.so: cannot open")

    monkeypatch.setattr(tcp.TcpFactory, "open", broken)
    async with coldstart.join(checkpoint, skeleton="tensors", settings=settings) as replica:
        assert replica.report.path == "storage"
    chosen = msgspec.structs.replace(settings, transports="tcp")
    with pytest.raises(coldstart.PluginUnavailable, match=r"'tcp' does not open: .*libwarp"):
        async with coldstart.join(checkpoint, skeleton="tensors", settings=chosen):
            raise AssertionError("not reached")


async def test_draining_while_the_skeleton_is_built_does_not_wait_for_it(settings: Settings, checkpoint: Path) -> None:
    slow = Slow()
    try:
        async with coldstart.join(checkpoint, skeleton=slow, settings=settings, wait=False) as replica:
            with anyio.fail_after(5):
                await replica.drain()
    finally:
        slow.release.set()


async def test_a_build_that_never_ends_is_a_named_failure(settings: Settings, checkpoint: Path) -> None:
    slow, hasty = Slow(), msgspec.structs.replace(settings, build=0.3)
    try:
        with pytest.raises(ColdStartFailed, match=r"not built within 0\.3 s"):
            async with coldstart.join(checkpoint, skeleton=slow, settings=hasty):
                raise AssertionError("not reached")
    finally:
        slow.release.set()


async def test_a_factory_that_makes_nothing_is_refused(settings: Settings, checkpoint: Path) -> None:
    with pytest.raises(SkeletonError, match="NoneType"):
        async with coldstart.join(checkpoint, skeleton=lambda: None, settings=settings):  # type: ignore[arg-type,return-value]
            raise AssertionError("not reached")


class LeavesAs(ModuleSkeleton[nn.Module]):
    """Calls ``sys.exit`` at one point of the start, as some libraries do where something is missing."""

    def __init__(self, where: str) -> None:
        super().__init__(lambda: nn.Linear(8, 8), probe=lambda module: self._leave("probe") or torch.ones(1))
        self._where = where

    def _leave(self, where: str) -> None:
        if where == self._where:
            sys.exit("no licence")

    def make(self, checkpoint: Checkpoint | None, rank: Rank) -> nn.Module:
        self._leave("make")
        return super().make(checkpoint, rank)

    def stored_names(self, module: nn.Module, checkpoint: Checkpoint) -> Mapping[str, str] | None:
        return None

    def load(self, module: nn.Module, checkpoint: Checkpoint) -> None:
        self._leave("load")
        super().load(module, checkpoint)

    def self_check(self, module: nn.Module) -> Sequence[str]:
        self._leave("self_check")
        return super().self_check(module)


@pytest.mark.parametrize("where", ["make", "load", "self_check"])
async def test_code_that_would_end_the_process_fails_the_start(tmp_path: Path, where: str) -> None:
    save_file({"weight": torch.ones(8, 8), "bias": torch.ones(8)}, tmp_path / "model.safetensors")
    with anyio.fail_after(20), pytest.raises(ColdstartError, match=r"asked the process to exit \('no licence'\)"):
        async with coldstart.join(tmp_path, skeleton=LeavesAs(where), settings=Settings(redis="none", cache="none")):
            pass


async def test_a_probe_that_would_end_the_process_is_said(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(8, 8), "bias": torch.ones(8)}, tmp_path / "model.safetensors")
    settings = Settings(redis="none", cache="none")
    async with coldstart.join(tmp_path, skeleton=LeavesAs("probe"), settings=settings) as replica:
        assert "asked the process to exit ('no licence')" in replica.report.probe


class Halt(BaseException):
    """What is no Exception, as a library's own way to stop everything."""


async def test_what_is_no_exception_fails_the_start_too(checkpoint: Path) -> None:
    def halt() -> nn.Module:
        raise Halt("stop everything")

    with anyio.fail_after(20), pytest.raises(ColdstartError, match="coldstart broke: Halt: stop everything"):
        async with coldstart.join(checkpoint, skeleton=halt, settings=Settings(redis="none", cache="none")):
            pass


async def test_a_requested_dtype_is_kept_or_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(8, 8), "bias": torch.ones(8)}, tmp_path / "model.safetensors")
    settings = Settings(redis="none", cache="none")

    def linear() -> nn.Module:
        return nn.Linear(8, 8)

    async with coldstart.join(tmp_path, skeleton=linear, dtype="bfloat16", settings=settings) as replica:
        assert {parameter.dtype for parameter in replica.module.parameters()} == {torch.bfloat16}
    with pytest.raises(ConfigError, match="give it to your builder"):
        async with coldstart.join(tmp_path, skeleton=ModuleSkeleton(linear), dtype="bfloat16", settings=settings):
            pass


@pytest.mark.parametrize("skeleton", [nn.Linear(8, 8), 7, None])
async def test_what_is_no_skeleton_is_refused(checkpoint: Path, skeleton: str) -> None:
    with pytest.raises(ConfigError, match=r"skeleton is (a module|7|None); give a name, a builder, or a function"):
        async with coldstart.join(checkpoint, skeleton=skeleton, settings=Settings(redis="none", cache="none")):
            pass


@pytest.mark.parametrize(
    ("rank", "message"),
    [
        (Rank(pp=2, pp_size=2), "rank pp=2 of pp_size=2 cannot be; ranks are counted from 0"),
        (Rank(tp=1), "rank tp=1 of tp_size=1 cannot be"),
        (Rank(ep=-1, ep_size=2), "rank ep=-1 of ep_size=2 cannot be"),
        (Rank(pp_size=0), "rank pp=0 of pp_size=0 cannot be"),
        (Rank(dp=-1), "rank dp=-1 cannot be"),
        (0, "rank is 0; give a coldstart.Rank"),
    ],
)
async def test_a_rank_that_cannot_be_is_refused(checkpoint: Path, rank: Rank, message: str) -> None:
    settings = Settings(redis="none", cache="none")
    with pytest.raises(ConfigError, match=message):
        async with coldstart.join(checkpoint, skeleton="tensors", rank=rank, settings=settings):
            pass
    with pytest.raises(ConfigError, match=message):
        async with coldstart.lend(nn.Linear(8, 8), checkpoint, skeleton="tensors", rank=rank, settings=settings):
            pass


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dtype": torch.bfloat16}, r"dtype is torch\.bfloat16; give its name"),
        ({"dtype": None}, "dtype is None; give its name"),
        ({"device": torch.device("cpu")}, r"device is device\(type='cpu'\); give its name"),
        ({"revision": 7}, "revision is 7; give its name"),
        ({"revision": "\ud800"}, "which is not Unicode"),
        ({"group": "ours"}, "group is 'ours'; give a coldstart"),
        ({"group": 7}, "group is 7; give a coldstart"),
    ],
)
async def test_names_are_texts(checkpoint: Path, given: dict[str, str], message: str) -> None:
    settings = Settings(redis="none", cache="none")
    with pytest.raises(ConfigError, match=message):
        async with coldstart.join(checkpoint, skeleton="tensors", settings=settings, **given):  # type: ignore[arg-type]
            pass


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "lend was given no module"),
        (nn.Linear, "the class Linear cannot be lent; give the nn.Module that holds the weights"),
        ({"weight": torch.ones(1)}, "a dict cannot be lent"),
        (7, "a int cannot be lent"),
    ],
)
async def test_only_a_module_is_lent(checkpoint: Path, given: nn.Module, message: str) -> None:
    settings = Settings(redis="none", cache="none")
    with pytest.raises(ConfigError, match=message):
        async with coldstart.lend(given, checkpoint, skeleton="tensors", settings=settings):
            pass


async def test_a_builder_is_made_before_it_is_given(checkpoint: Path) -> None:
    with pytest.raises(SkeletonError, match="ModuleSkeleton factory made a ModuleSkeleton; it must return"):
        async with coldstart.join(checkpoint, skeleton=ModuleSkeleton, settings=Settings(redis="none", cache="none")):
            pass


async def test_a_failed_start_is_one_plain_error(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(coldstart.CheckpointError, match="no checkpoint at"):
        async with coldstart.join(tmp_path / "nothing", settings=settings):
            raise AssertionError("not reached")


async def test_an_unknown_skeleton_names_what_is_installed(settings: Settings, checkpoint: Path) -> None:
    with pytest.raises(UnknownPlugin, match=r"no skeleton is called 'nosuch'; installed are: .*tensors"):
        async with coldstart.join(checkpoint, skeleton="nosuch", settings=settings):
            raise AssertionError("not reached")


async def test_an_unknown_transport_names_what_is_installed(settings: Settings, checkpoint: Path) -> None:
    chosen = msgspec.structs.replace(settings, transports="pigeon")
    with pytest.raises(UnknownPlugin, match=r"no transport is called 'pigeon'; installed are: .*tcp"):
        async with coldstart.join(checkpoint, skeleton="tensors", settings=chosen):
            raise AssertionError("not reached")


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
