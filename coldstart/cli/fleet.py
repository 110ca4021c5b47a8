"""A fleet of worker processes on this machine, watched through their JSON lines.

Decides how a worker process is started, followed, killed and reaped; what the fleet is for is
the demo's matter. Every process is gone when the fleet's block ends, whatever happened.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
import msgspec
from anyio.abc import Process, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream

from coldstart import config
from coldstart.cli.demo_worker import Answered, Task
from coldstart.cli.worker import Told
from coldstart.errors import ColdStartFailed
from coldstart.report import Progress, Report

MAX_LINE = 64 * 1024 * 1024
END_SECONDS = 5.0
KEPT = ("transports", "warn_gbps", "warn_share")
"""Settings of the operator's that hold here; the rest is for workers of their own."""


class Member:
    """One worker process: what it has said so far."""

    def __init__(self, name: str, process: Process, started: float) -> None:
        self.name = name
        self.started = started
        self.report: Report | None = None
        self.progress: Progress | None = None
        self.served_at: float | None = None
        self.killed_at: float | None = None
        self.answers: Sequence[Sequence[float]] | None = None
        self.error = ""
        self._process = process
        self._changed = anyio.Event()
        self._answered = False
        self._ended = False

    async def until(self, done: Callable[[Member], bool], what: str) -> None:
        """Wait until ``done``; raises ColdStartFailed if the process ends before."""
        while not done(self):
            if self._ended:
                ended = f"ended with exit code {self._process.returncode} before it {what}"
                raise ColdStartFailed(f"{self.name} failed: {self.error}" if self.error else f"{self.name} {ended}")
            await self._changed.wait()

    async def serving(self) -> Report:
        """Wait for SERVE."""
        await self.until(lambda member: member.report is not None, "served")
        assert self.report is not None
        return self.report

    async def ask(self, texts: Sequence[str]) -> Sequence[Sequence[float]] | None:
        """What the worker's module makes of ``texts``."""
        self._answered = False
        assert self._process.stdin is not None
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # it ended, and until() says how
            await self._process.stdin.send(msgspec.json.encode(list(texts)) + b"\n")
        await self.until(lambda member: member._answered, "answered")
        return self.answers

    def kill(self) -> None:
        """SIGKILL, as a node failure would."""
        self.killed_at = time.monotonic()
        self._process.send_signal(signal.SIGKILL)

    async def follow(self) -> None:
        """Read the process's lines until it ends."""
        assert self._process.stdout is not None
        lines = BufferedByteReceiveStream(self._process.stdout)
        try:
            while True:
                self._take(await lines.receive_until(b"\n", MAX_LINE))
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError, anyio.BrokenResourceError):
            pass
        await self._process.wait()
        self._ended = True
        self._wake()

    def _take(self, line: bytes) -> None:
        if msgspec.json.decode(line, type=dict[str, object]).get("event") == "answered":
            self.answers = msgspec.json.decode(line, type=Answered).answers
            self._answered = True
        else:
            told = msgspec.json.decode(line, type=Told)
            self.progress = told.progress or self.progress
            self.report = told.report or self.report
            self.error = told.error or self.error
            if told.event == "serving":
                self.served_at = told.at
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def end(self) -> None:
        """Ask the process to end (SIGTERM), insist after a while, and reap it."""
        if self._process.returncode is None:
            with anyio.move_on_after(END_SECONDS):
                with suppress(ProcessLookupError):
                    self._process.send_signal(signal.SIGTERM)
                await self._process.wait()
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()
        await self._process.aclose()


class Fleet:
    """The processes of one block; make it with :func:`fleet`."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self.members: list[Member] = []

    async def start(self, task: Task) -> Member:
        """Start a process for ``task`` and follow it."""
        started = time.monotonic()
        process = await anyio.open_process(
            [sys.executable, "-m", "coldstart.cli.demo_worker", msgspec.json.encode(task).decode()],
            stderr=None,
            env=config.environment(kept=KEPT),
            start_new_session=True,  # Ctrl-C is for the demo, which ends its workers in order
        )
        member = Member(task.asked.name, process, started)
        self.members.append(member)
        self._tasks.start_soon(member.follow)
        return member


@asynccontextmanager
async def fleet() -> AsyncIterator[Fleet]:
    """A fleet whose processes are all gone when the block ends."""
    async with anyio.create_task_group() as tasks:
        crew = Fleet(tasks)
        try:
            yield crew
        finally:
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as ending:
                    for member in crew.members:
                        ending.start_soon(member.end)
            tasks.cancel_scope.cancel()
