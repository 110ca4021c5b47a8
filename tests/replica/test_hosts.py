"""Hosts, builders and plugins that fail, hang or would end the process: a named error, and nothing is left behind."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import msgspec
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import coldstart
from coldstart import wiring
from coldstart.config import Settings
from coldstart.errors import ColdstartError, ColdStartFailed, ConfigError, SkeletonError
from coldstart.ports import Checkpoint, Rank, TransportSettings
from coldstart.report import Progress
from coldstart.skeletons.module import ModuleSkeleton
from coldstart.transports import tcp


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
