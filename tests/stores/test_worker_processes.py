"""Four ``coldstart worker`` processes at once, one real Valkey, one real S3 server: who reads which byte of it."""

from __future__ import annotations

import json
import math
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

pytest.importorskip("obstore", reason="obstore is not installed")

from coldstart.bus.embedded import embedded
from coldstart.bus.redis import RedisBus
from coldstart.claiming import LEAD_SECONDS
from coldstart.transports.objects import PIECE_BYTES
from tests.cli.conftest import CommandLine
from tests.stores.conftest import BUCKET, Store, environment
from tests.stores.gateway import Gateway

pytestmark = [pytest.mark.processes, pytest.mark.timeout(200)]

Write = Callable[..., Path]
FILE = "model.safetensors"
WORKERS = ("w0", "w1", "w2", "w3")
MIB = 1 << 20
SIZE_MIB = 24
"""Three requests of a leader that has one at a time, as many chunks as MiB."""
READ = 8 * MIB
HEADER = 8
"""The byte at which it begins, and the last one at which anything but weights does."""
SECONDS = 60.0
"""For all workers to be where they are waited for: four interpreters that import torch at once, on any machine."""


class Worker:
    """One process; ``reads`` is since when it reads storage, ``report`` and ``error`` are what it says in the end."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.reads = math.inf
        self.report: Mapping[str, object] = {}
        self.error = ""
        self.over = anyio.Event()

    async def follow(self) -> None:
        """Until it serves, or is gone."""
        assert self.process.stdout is not None
        lines = BufferedByteReceiveStream(self.process.stdout)
        try:
            while not self.report:
                told = json.loads(await lines.receive_until(b"\n", MIB))
                self.report, self.error = told.get("report", {}), told.get("error", "")
                if told.get("progress", {}).get("phase") == "FALLBACK":
                    self.reads = min(self.reads, told["at"])
        except (anyio.IncompleteRead, anyio.ClosedResourceError):
            pass
        self.over.set()


@asynccontextmanager
async def rollout(store: Store, reads: int) -> AsyncIterator[tuple[list[Worker], RedisBus]]:
    """All workers, started at once, and a look at their bus; they are killed when the block ends."""
    with tempfile.TemporaryDirectory(prefix="cs") as short:
        async with embedded(Path(short) / "store") as url, anyio.create_task_group() as tasks:
            run = CommandLine(
                COLDSTART_REDIS=url, COLDSTART_CACHE=short, COLDSTART_STORE_READS=str(reads), OMP_NUM_THREADS="1",
                **environment(store.gateway.url),
            )  # fmt: skip
            workers = list[Worker]()
            bus = await RedisBus.open(url)
            try:
                for name in WORKERS:
                    words = ("worker", "--json", "--name", name, "--checkpoint", store.url, "--skeleton", "tensors")
                    process = await anyio.open_process(run.command(words), env=run.environment, stderr=None)
                    workers.append(Worker(process))
                    tasks.start_soon(workers[-1].follow)
                started = tuple(workers)
                yield workers, bus
            finally:
                with anyio.CancelScope(shield=True):
                    for worker in started:
                        if worker.process.returncode is None:
                            worker.process.kill()
                        await worker.process.aclose()
                    await bus.aclose()
                tasks.cancel_scope.cancel()


def weights(store: Store) -> list[tuple[int, int]]:
    """The ranges of tensors that were given out, whoever asked."""
    header = min(end for start, end in store.gateway.read(store.key(FILE)) if start == 8)
    return store.gateway.read(store.key(FILE), header)


def assert_each_byte_once(store: Store, directory: Path) -> None:
    found = weights(store)
    assert all(end == start for (_, end), (start, _) in pairwise(found)), found
    assert found[-1][1] == (directory / FILE).stat().st_size


@pytest.fixture
def directory(store: Store, tmp_path: Path, write_checkpoint: Write) -> Path:
    made = write_checkpoint(tmp_path / "m", mib=SIZE_MIB)
    store.upload(made)
    return made


async def until_all_serve(workers: Iterable[Worker]) -> None:
    with anyio.fail_after(SECONDS):
        for worker in workers:
            await worker.over.wait()
            assert worker.report, worker.error


def at_once(gateway: Gateway, then: Callable[[int], object] = lambda first: None) -> None:
    """Nobody sees what there is before all do; ``then`` is called before each answer to what they ask for later."""
    meeting = threading.Barrier(len(WORKERS))

    def before(key: str, first: int) -> None:
        if key == f"/{BUCKET}":
            meeting.wait(SECONDS)
        else:
            then(first)

    gateway.before = before


async def test_four_processes_read_each_byte_once(store: Store, directory: Path) -> None:
    """From a store so slow that its first whole range takes longer than a leader may be without progress."""
    at_once(store.gateway)
    store.gateway.rate = SIZE_MIB * MIB / (1.5 * LEAD_SECONDS)
    async with rollout(store, reads=16) as (workers, _):
        await until_all_serve(workers)
        assert sorted(str(worker.report["path"]) for worker in workers) == ["peer"] * 3 + ["storage"]
        assert len({worker.report["root"] for worker in workers}) == 1
        assert_each_byte_once(store, directory)


async def test_after_a_killed_leader_the_next_one_reads_only_what_nobody_has(store: Store, directory: Path) -> None:
    """It is killed in the third of three ranges, with two that the others have by then. That third one trickles, so
    that the leader is nobody that stands still; its answer never ends, and is not in the log."""

    def trickle(first: int) -> None:
        if first > HEADER + 2 * READ:
            store.gateway.rate = 1.5 * PIECE_BYTES / LEAD_SECONDS

    at_once(store.gateway, trickle)
    async with rollout(store, reads=1) as (workers, bus):
        with anyio.fail_after(SECONDS):
            while sum(each * MIB >= 2 * READ for each in await have(bus)) < len(WORKERS):  # noqa: ASYNC110
                await anyio.sleep(0.05)
        leader = min(workers, key=lambda worker: worker.reads)
        assert leader.reads < math.inf
        leader.process.kill()
        await leader.over.wait()
        assert not leader.report, "it has not come to its end"
        store.gateway.before, store.gateway.rate = lambda key, first: None, math.inf
        workers.remove(leader)
        await until_all_serve(workers)
        paths = sorted(str(worker.report["path"]) for worker in workers)
        assert paths == ["mixed", "peer", "peer"], [worker.report["detours"] for worker in workers]
        ranges = weights(store)
        assert all(end <= start for (_, end), (start, _) in pairwise(ranges)), ranges
        assert ranges[-1][1] == (directory / FILE).stat().st_size


async def have(bus: RedisBus) -> list[int]:
    """Chunks of everybody who has any."""
    return [advert.have for shard in await bus.shards() for advert in await bus.adverts(shard)]
