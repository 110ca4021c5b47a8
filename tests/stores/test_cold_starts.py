"""Cold starts from a real S3 server: several workers, failed peers, builders that need whole files, commands."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import anyio
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, safe_open, save
from torch import nn
from typer.testing import CliRunner

import coldstart
from coldstart import config
from coldstart.cli.checks.checkpoint import readable
from coldstart.cli.main import app
from coldstart.config import Settings
from coldstart.errors import CheckpointError, ColdStartFailed, ConfigError
from coldstart.ports import Checkpoint
from coldstart.skeletons.module import ModuleSkeleton
from tests.cli.conftest import CommandLine
from tests.stores.conftest import BUCKET, Store
from tests.stores.gateway import Fault

Write = Callable[..., Path]
FILE = "model.safetensors"
SHELVES = str(Path(coldstart.__file__).parent / "shelves")
PROMPT = 1.0
"""Seconds within which a cancelled start is over: a store has half a minute before it counts as silent."""


@pytest.fixture
def settings(tmp_path_factory: pytest.TempPathFactory, store: Store) -> Settings:
    """``store`` first: its variables are read."""
    return config.load({"directory": str(tmp_path_factory.mktemp("v")), "drain": 2.0})


@pytest.fixture
def directory(store: Store, tmp_path: Path, write_checkpoint: Write) -> Path:
    made = write_checkpoint(tmp_path / "m", mib=12)
    store.upload(made)
    return made


def assert_loaded(module: nn.Module, directory: Path) -> None:
    expected, state = load_file(directory / FILE), module.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())


def weights(store: Store) -> list[tuple[int, int]]:
    """Ranges of tensors that were given out; headers are every worker's own."""
    header = min(end for start, end in store.gateway.read(store.key(FILE)) if start == 8)
    return store.gateway.read(store.key(FILE), header)


async def test_four_workers_fetch_each_byte_once(store: Store, settings: Settings, directory: Path) -> None:
    reports: list[coldstart.Report] = []
    everybody = anyio.Event()

    async def start(name: str) -> None:
        async with coldstart.join(store.url, skeleton="tensors", worker=name, settings=settings) as replica:
            reports.append(replica.report)
            assert_loaded(replica.module, directory)
            if len(reports) == 4:
                everybody.set()
            await everybody.wait()

    async with anyio.create_task_group() as tasks:
        for index in range(4):
            tasks.start_soon(start, f"w{index}")
    assert sorted(report.path for report in reports) == ["peer"] * 3 + ["storage"]
    found = weights(store)
    assert all(end == start for (_, end), (start, _) in pairwise(found)), found
    assert found[-1][1] == (directory / FILE).stat().st_size
    assert len({report.root for report in reports}) == 1
    assert await anyio.to_thread.run_sync(store.gateway.wait_for, lambda: store.gateway.open == 0)


async def test_after_a_failed_peer_only_what_is_missing_is_fetched(
    store: Store, settings: Settings, directory: Path
) -> None:
    slow = replace(settings, lend_gbps=0.004, drain=0.0, sources=1)
    async with coldstart.join(store.url, skeleton="tensors", worker="a", settings=slow) as source:
        store.gateway.seen.clear()
        async with coldstart.join(store.url, skeleton="tensors", worker="b", settings=slow, wait=False) as replica:
            async for step in replica.progress():
                if step.bytes_verified:
                    break
            await source.drain()
            report = await replica.ready()
            assert_loaded(replica.module, directory)
    assert report.path == "mixed"
    found = weights(store)
    stored = sum(end - start for start, end in found)
    assert 0 < stored < (directory / FILE).stat().st_size
    assert all(end <= start for (_, end), (start, _) in pairwise(found)), "each byte at most once"
    padding = report.bytes_total - sum(tensor.nbytes for tensor in load_file(directory / FILE).values())
    assert 0 <= report.bytes_storage - stored <= padding


async def test_a_disk_cache_serves_the_next_start(
    store: Store, settings: Settings, directory: Path, tmp_path: Path
) -> None:
    cached = replace(settings, disk_cache=str(tmp_path / "cache"), redis="none")
    for seen in (True, False):
        store.gateway.seen.clear()
        async with coldstart.join(store.url, skeleton="tensors", settings=cached) as replica:
            assert_loaded(replica.module, directory)
        assert bool(weights(store)) == seen


class Transposing(ModuleSkeleton[nn.Module]):
    """Weights that are transformed as they are loaded: only whole files will do."""

    def __init__(self) -> None:
        super().__init__(lambda: nn.Linear(3, 2, bias=False), name="transposing")
        self.paths: list[Path] = []

    def stored_names(self, module: nn.Module, checkpoint: Checkpoint) -> None:
        return None

    def load(self, module: nn.Module, checkpoint: Checkpoint) -> None:
        self.paths.append(checkpoint.path)
        assert (checkpoint.path / "config.json").read_text() == "{}"
        with safe_open(checkpoint.tensors["w"].file, framework="pt") as file:
            module.get_parameter("weight").copy_(file.get_tensor("w").T)


@pytest.mark.parametrize("keep", [True, False], ids=["with a disk cache", "without"])
async def test_a_builder_that_loads_whole_files(keep: bool, store: Store, settings: Settings, tmp_path: Path) -> None:
    wanted = torch.arange(6.0).reshape(3, 2)
    store.put(FILE, save({"w": wanted}))
    store.put("config.json", b"{}")
    own = replace(settings, redis="none", cache=str(tmp_path / "c"), disk_cache=str(tmp_path / "d") if keep else "")
    builder = Transposing()
    for _ in range(2):
        async with coldstart.join(store.url, skeleton=builder, settings=own) as replica:
            assert torch.equal(replica.module.get_parameter("weight"), wanted.T)
            assert replica.report.whole_read
    assert not any(path.exists() for path in builder.paths)
    whole = [each for each in store.gateway.read(store.key(FILE)) if each[0] == 0 and each[1] > 8]
    assert len(whole) == (1 if keep else 2)
    left = list((tmp_path / "d" if keep else tmp_path / "c" / "loading").rglob("data"))
    assert len(left) == (1 if keep else 0)


async def test_a_start_that_is_cancelled_as_whole_files_come_leaves_nothing(
    store: Store, settings: Settings, tmp_path: Path
) -> None:
    content = save({"w": torch.zeros(3, 2)})
    store.put(FILE, content)
    store.put("config.json", b"{}")
    own = replace(settings, redis="none", cache=str(tmp_path / "c"))
    asked = anyio.Event()

    async def start() -> None:
        async with coldstart.join(store.url, skeleton=Transposing(), settings=own, wait=False) as replica:
            async for step in replica.progress():
                if step.phase is coldstart.Phase.FALLBACK:
                    asked.set()

    def silent(method: str, key: str) -> Fault:
        return "silent" if method == "GET" and key.endswith(FILE) and len(store.gateway.read(key)) == 2 else ""

    store.gateway.misbehave = silent
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(start)
        await asked.wait()
        quiet = lambda: any(each.status == 0 for each in store.gateway.seen)  # noqa: E731
        assert await anyio.to_thread.run_sync(store.gateway.wait_for, quiet)
        tasks.cancel_scope.cancel()
    assert await anyio.to_thread.run_sync(store.gateway.wait_for, lambda: store.gateway.open == 0)
    assert list((tmp_path / "c" / "loading").rglob("data")) == []


def _waiting_for_a_store() -> list[str]:
    """Threads that are inside of anything about shelves."""
    stacks = [traceback.extract_stack(frame) for frame in sys._current_frames().values()]
    return ["".join(traceback.format_list(stack)) for stack in stacks if any(SHELVES in at.filename for at in stack)]


@pytest.mark.parametrize("silent", ["the listing", "a small file", "a header"])
async def test_a_start_that_is_cancelled_as_a_store_is_silent_leaves_no_thread(
    silent: str, store: Store, settings: Settings, directory: Path
) -> None:
    store.put("config.json", b"{}")
    key = {"the listing": f"/{BUCKET}", "a small file": store.key("config.json"), "a header": store.key(FILE)}[silent]
    store.gateway.misbehave = lambda method, at: "silent" if (method, at) == ("GET", key) else ""

    async def start() -> None:
        async with coldstart.join(store.url, settings=settings):
            pytest.fail("it cannot serve")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(start)
        quiet = lambda: any(each.status == 0 for each in store.gateway.seen)  # noqa: E731
        assert await anyio.to_thread.run_sync(store.gateway.wait_for, quiet)
        began = anyio.current_time()
        tasks.cancel_scope.cancel()
    with anyio.move_on_at(began + PROMPT):
        while _waiting_for_a_store():  # noqa: ASYNC110
            await anyio.sleep(0.01)
    assert _waiting_for_a_store() == []
    assert anyio.current_time() < began + PROMPT
    assert await anyio.to_thread.run_sync(store.gateway.wait_for, lambda: store.gateway.open == 0)


async def test_a_checkpoint_that_is_overwritten_fails_the_start_by_name(
    store: Store, settings: Settings, directory: Path
) -> None:
    alone = replace(settings, redis="none")
    newer = (directory / FILE).read_bytes()[:-4] + b"\0\0\0\1"

    class Late(ModuleSkeleton[nn.Module]):
        def make(self, checkpoint: Checkpoint | None, rank: coldstart.Rank) -> nn.Module:
            store.put(FILE, newer)
            return super().make(checkpoint, rank)

    def tree() -> nn.Module:
        module = nn.Module()
        for name, tensor in load_file(directory / FILE).items():
            owner = module
            *segments, last = name.split(".")
            for segment in segments:
                if not hasattr(owner, segment):
                    owner.add_module(segment, nn.Module())
                owner = owner.get_submodule(segment)
            owner.register_parameter(last, nn.Parameter(torch.empty_like(tensor), requires_grad=False))
        return module

    with pytest.raises(ColdStartFailed, match=f"{store.url}/{FILE} changed after its header was read"):
        async with coldstart.join(store.url, skeleton=Late(tree), settings=alone):
            pass


async def test_a_refused_store_fails_the_start_in_one_line(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(CheckpointError, match=r"access to .* was refused"):
        async with coldstart.join(store.url, settings=settings):
            pass


@pytest.mark.parametrize(
    ("url", "words"),
    [("s3://", "names no bucket"), ("ftp://host/model", "s3://, gs://, az://"), ("s3://b/../x", "a path that is none")],
)
async def test_a_url_that_is_none_is_the_operators_error(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        async with coldstart.join(url, settings=Settings(redis="none")):
            pass


def test_the_doctor_says_whether_a_store_can_be_read(
    store: Store, settings: Settings, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = readable(store.url, settings.shelves)
    assert (found.status, found.finding[: len(store.url)]) == ("ok", store.url)
    assert "4 tensors of 12.6 MB in 1 of its files" in found.finding
    told = CliRunner().invoke(app, ["doctor", "--json", "--redis", "none", "--checkpoint", f"{store.url}/none"])
    checks = {check["name"]: check for check in json.loads(told.stdout)["checks"]}
    assert (told.exit_code, checks["checkpoint"]["status"]) == (1, "fail")
    assert "nothing is there" in checks["checkpoint"]["finding"]


@pytest.mark.processes
def test_the_command_line_takes_urls(store: Store, directory: Path, tmp_path: Path) -> None:
    run = CommandLine(COLDSTART_DIRECTORY=str(tmp_path / "v"))
    served = run("worker", "--checkpoint", store.url, "--once", "--redis", "none")
    assert served.returncode == 0, served
    assert "serves model@" in served.stdout
    failed = run("inspect", f"{store.url}/none")
    assert (failed.returncode, failed.stdout) == (3, "")
    assert failed.stderr.splitlines() == [
        f"coldstart: no checkpoint at {store.url}/none: nothing is there; check the bucket and the path"
    ]
