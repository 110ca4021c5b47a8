"""Writes the traces and timelines of ``tracing.md``: of real workers, as a collector received them.

    python docs/tracing_page.py

Starts workers of the command line on a small checkpoint and a Valkey of this machine, receives what they export over
OTLP, and writes for each case the tree of its trace and what ``coldstart trace`` says of the same start. Decides which
cases there are and how they read; what is traced and what is told is the product's.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread
import msgspec
import torch
from anyio.abc import TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream
from safetensors.torch import save_file

PAGE = Path(__file__).with_name("tracing.md")
ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.traces.collector import Collected, collector  # noqa: E402
from benchmarks.traces.tree import draw  # noqa: E402
from coldstart.bus.embedded import embedded  # noqa: E402

MIB = 192
"""Size of the checkpoint."""
SLOW = 0.04
"""GB/s at which a source lends where a transfer is to last."""
SECONDS = 240.0
"""For any case, on a slow machine."""
MAX_LINE = 1 << 20


class Line(msgspec.Struct, frozen=True):
    """What is needed of a line that ``coldstart worker --json`` says."""

    event: str
    progress: dict[str, object] | None = None


class Worker:
    """One process of ``coldstart worker``, whose lines are read as they come."""

    def __init__(self, process: anyio.abc.Process) -> None:
        self.process = process
        self._lines: list[Line] = []
        self._changed = anyio.Event()

    async def follow(self) -> None:
        """Read its lines until it ends."""
        assert self.process.stdout is not None
        stream = BufferedByteReceiveStream(self.process.stdout)
        with suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError, anyio.BrokenResourceError):
            while True:
                self._lines.append(msgspec.json.decode(await stream.receive_until(b"\n", MAX_LINE), type=Line))
                self._changed.set()
                self._changed = anyio.Event()

    async def until(self, event: str, phase: str = "", nbytes: int = 0) -> None:
        """Wait until it says ``event``, of a ``phase`` and with so many verified bytes where they are given."""
        while not any(_is(line, event, phase, nbytes) for line in self._lines):
            await self._changed.wait()

    async def leave(self) -> None:
        """SIGTERM, and wait until it has drained and exported its spans."""
        self.process.send_signal(signal.SIGTERM)
        await self.process.wait()


def _is(line: Line, event: str, phase: str, nbytes: int) -> bool:
    step = line.progress or {}
    verified = step.get("bytes_verified", 0)
    there = not phase or (step.get("phase") == phase and isinstance(verified, int) and verified >= nbytes)
    return line.event == event and there


class Case:
    """The workers of one case, their store and their collector."""

    def __init__(
        self, url: str, checkpoint: Path, collected: Collected, resources: AsyncExitStack, tasks: TaskGroup
    ) -> None:
        self.collected, self._tasks = collected, tasks
        self._url, self._checkpoint, self._resources = url, checkpoint, resources

    async def start(self, name: str, *words: str) -> Worker:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("COLDSTART_", "OTEL_"))}
        # Sources are slow on purpose here: no estimate is to choose storage instead.
        own = {
            "COLDSTART_CACHE": "none",
            "OMP_NUM_THREADS": "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.collected.url,
            "OTEL_METRICS_EXPORTER": "none",
        }
        command = ["worker", "--checkpoint", str(self._checkpoint), "--skeleton", "tensors", "--json"]
        process = await anyio.open_process(
            [sys.executable, "-m", "coldstart.cli.main", *command, "--name", name, "--redis", self._url, *words],
            stderr=None,
            env=kept | own,
        )
        self._resources.push_async_callback(_end, process)
        worker = Worker(process)
        self._tasks.start_soon(worker.follow)
        return worker

    async def serving(self, name: str, *words: str) -> Worker:
        worker = await self.start(name, *words)
        await worker.until("serving")
        return worker

    async def told(self, worker: str) -> str:
        """The tree of a worker's trace, and its timeline from the journal."""
        roots = {
            span.id: f"the cold start of {span.attributes['coldstart.worker']}"
            for span in self.collected.spans
            if span.name == "coldstart"
        }
        tree = draw(self.collected.trace(worker), roots)
        command = [sys.executable, "-m", "coldstart.cli.main", "trace", worker, "--redis", self._url]
        done = await anyio.run_process(command, env={**os.environ, "COLUMNS": "110"})
        return f"```text\n{tree}\n```\n\n`coldstart trace {worker}`:\n\n```text\n{done.stdout.decode().rstrip()}\n```"


async def good(case: Case) -> str:
    """A start from a peer that has everything."""
    source = await case.serving("w1")
    joiner = await case.serving("w2")
    await joiner.leave()
    await source.leave()
    return await case.told("w2")


async def chain(case: Case) -> str:
    """A start from a peer that still receives itself: two begin at once, and one of them is sent to the other."""
    source = await case.serving("w1", "--slots", "1", "--lend-gbps", f"{SLOW}")
    joiners = [await case.start(name, "--slots", "1") for name in ("w2", "w3")]
    for joiner in joiners:
        await joiner.until("serving")
    for worker in (*joiners, source):
        await worker.leave()
    relayed = next(span for span in case.collected.spans if span.attributes.get("coldstart.source") in ("w2", "w3"))
    return await case.told(relayed.instance)


async def bad(case: Case) -> str:
    """A source that falls silent in mid-transfer; the rest comes from storage."""
    source = await case.serving("w1", "--lend-gbps", f"{SLOW}")
    joiner = await case.start("w2")
    await joiner.until("progress", "TRANSFER", 32 << 20)
    source.process.send_signal(signal.SIGSTOP)
    await joiner.until("serving")
    await joiner.leave()
    return await case.told("w2")


CASES: dict[str, Callable[[Case], Awaitable[str]]] = {"good": good, "chain": chain, "bad": bad}


@asynccontextmanager
async def prepared(checkpoint: Path) -> AsyncIterator[Case]:
    """A store and a collector; every worker ends with the block."""
    with tempfile.TemporaryDirectory(prefix="cs") as place, collector() as collected:
        async with embedded(Path(place) / "store") as url, AsyncExitStack() as resources:
            tasks = await resources.enter_async_context(anyio.create_task_group())
            yield Case(url, checkpoint, collected, resources, tasks)


async def _end(process: anyio.abc.Process) -> None:
    with anyio.CancelScope(shield=True):
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()
        await process.aclose()


def between(text: str, marker: str, body: str) -> str:
    """``text`` with ``body`` between the two comments named ``marker``; raises ValueError where they are not."""
    begin, end = f"<!-- {marker}: begin -->", f"<!-- {marker}: end -->"
    head, rest = text.split(begin)
    _, tail = rest.split(end)
    return f"{head}{begin}\n{body}\n{end}{tail}"


async def main() -> None:
    """Run every case and write the page."""
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = Path(directory) / "model"
        checkpoint.mkdir()
        weights = {f"layer.{number}": torch.randn(MIB // 4, 1024, 256) for number in range(4)}
        await anyio.to_thread.run_sync(save_file, weights, checkpoint / "model.safetensors")
        for name, run in CASES.items():
            print(f"{name}: {(run.__doc__ or '').strip()}")
            with anyio.fail_after(SECONDS):
                async with prepared(checkpoint) as case:
                    told = await run(case)
            PAGE.write_text(between(PAGE.read_text(), name, told))


if __name__ == "__main__":
    anyio.run(main)
