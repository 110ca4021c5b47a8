"""The public API: ``async with coldstart.join(...) as replica``.

Decides how the parts are wired and who owns them: one task group holds both machines' runners
and the postman; leaving the block drains, withdraws and closes everything, also when the host
is cancelled. Installs no signal handlers, no global providers, and does nothing slow on the
loop: building, and importing heavy libraries, happens in worker threads (``wiring.py``).
"""

from __future__ import annotations

import itertools
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from os import getpid
from pathlib import Path
from typing import TYPE_CHECKING, cast

import anyio
from anyio.abc import TaskGroup

from coldstart import config, machine, wiring
from coldstart.config import Settings
from coldstart.errors import ColdstartError, ConfigError
from coldstart.identity import Rank, is_id
from coldstart.node import Part
from coldstart.phases.states import Failed, Phase, State
from coldstart.ports import Bus
from coldstart.report import Progress, Report, failure
from coldstart.runner import Entry
from coldstart.telemetry import logger
from coldstart.wiring import Wired

if TYPE_CHECKING:
    from coldstart.skeletons.assembly import Built, Module, SkeletonChoice

CLOSE_SECONDS = 3.0
"""What a cancelled host still waits for withdrawal and for readers to be quiet."""
PROGRESS_SECONDS = 0.05
"""Progress is told at most so often, and at every change of phase."""


class Replica:
    """One worker's weights: on their way, then served and lent. Made by :func:`join`."""

    def __init__(self, worker: str, settings: Settings, on_progress: Callable[[Progress], None] | None) -> None:
        self.worker = worker
        self._settings = settings
        self._on_progress = on_progress
        self._told = 0.0
        self._began = anyio.current_time()
        self._wired: Wired | None = None
        self._changed = anyio.Event()
        self._ready = anyio.Event()
        self._gone = anyio.Event()
        self._error: Exception | None = None
        self._draining = False
        self._stopped = False
        self._running: set[anyio.CancelScope] = set()

    @property
    def module(self) -> Module:
        """The module; its weights are right once :meth:`ready` has returned."""
        return self._must_be_wired().built.module

    @property
    def report(self) -> Report:
        """What has happened so far; final once serving."""
        return self._must_be_wired().recorder.report()

    @property
    def built(self) -> Built:
        """The module with its builder, checkpoint and memory; for tools."""
        return self._must_be_wired().built

    @property
    def phase(self) -> Phase:
        """Where the cold start stands."""
        return machine.phase_of(self._wired.node.joiner.state) if self._wired else Phase.IDLE

    @property
    def lending(self) -> int:
        """How many joiners may read these weights now."""
        return len(self._wired.node.source.state.grants) if self._wired else 0

    async def ready(self) -> Report:
        """Wait for SERVE; raises the ColdstartError that the cold start failed with."""
        await self._ready.wait()
        if self._error is not None:
            raise self._error
        return self.report

    async def progress(self) -> AsyncIterator[Progress]:
        """Progress from now on, at every change of phase and a few times a second; ends with SERVE, FAILED or GONE."""
        told, phase = -PROGRESS_SECONDS, Phase.IDLE
        while True:
            changed, over = self._changed, self._ready.is_set() or self._gone.is_set()
            if self._wired is not None:
                step, now = self._wired.recorder.progress(), anyio.current_time()
                if over or step.phase is not phase or now - told >= PROGRESS_SECONDS:
                    told, phase = now, step.phase
                    yield step
            if over:
                return
            await changed.wait()

    async def drain(self) -> None:
        """Stop lending: withdraw now, let transfers in flight end in their time, then return.

        The module stays usable. Idempotent. Before SERVE it ends the cold start.
        """
        self._draining = True
        if self._wired is not None:
            self._wired.node.drain()
        await self._gone.wait()

    def _must_be_wired(self) -> Wired:
        if self._wired is None:
            raise ConfigError("the skeleton is not built yet", advice="await replica.ready() first")
        return self._wired

    # --------------------------------------------------------------------------------- life cycle

    async def _start(self, build: Callable[[], Built], bus: Bus | None, tasks: TaskGroup) -> None:
        """Build, wire and set off; whatever goes wrong is what :meth:`ready` raises."""
        try:
            wired = await wiring.wire(build, self.worker, self._settings, bus, self._began, self._observe)
        except Exception as error:
            self._end(error)
            return
        self._wired = wired
        if self._stopped:
            return
        for part in wired.node.parts:
            tasks.start_soon(self._run, part, name=f"coldstart {self.worker}")
        if self._draining:
            wired.node.drain()
        else:
            wired.node.start()

    async def _run(self, part: Part) -> None:
        """Run one part until :meth:`_stop`; a bug in it must not take the host down.

        The scope is of its own because the cancellation of a whole task leaves a traceback in a
        circle, which would hold the weights' memory until the garbage collector comes by.
        """
        with anyio.CancelScope() as scope:
            self._running.add(scope)
            try:
                await part()
            except Exception as error:
                logger().error("coldstart broke", worker=self.worker, error=repr(error))
                self._end(error)
        self._running.discard(scope)

    def _stop(self) -> None:
        """End all parts."""
        self._stopped = True
        for scope in self._running:
            scope.cancel()

    def _observe(self, entry: Entry[State]) -> None:
        """After each step of the joiner: wake whoever waits."""
        phase = machine.phase_of(entry.after)
        if isinstance(entry.after, Failed):
            self._end(failure(self.report, entry.after))
        elif phase is Phase.SERVE:
            self._ready.set()
        elif phase is Phase.GONE:
            self._end(None if self._ready.is_set() else ColdstartError("drained before the weights had arrived"))
        self._changed.set()
        self._changed = anyio.Event()
        if self._on_progress is not None and self._wired is not None:
            changed = phase is not machine.phase_of(entry.before)
            if changed or entry.at - self._told >= PROGRESS_SECONDS:
                self._told = entry.at
                self._on_progress(self._wired.recorder.progress())

    def _end(self, error: Exception | None) -> None:
        if not self._ready.is_set():
            self._error = error
        self._ready.set()
        self._gone.set()
        self._changed.set()

    async def _leave(self, *, graceful: bool) -> None:
        """Drain; at once if the host was cancelled or broke."""
        if self._wired is None or self._gone.is_set():
            return
        limit = self._settings.drain + CLOSE_SECONDS if graceful else CLOSE_SECONDS
        with anyio.move_on_after(limit, shield=not graceful):
            self._wired.node.drain(at_once=not graceful)
            await self._gone.wait()

    async def _close(self) -> None:
        """Release sockets, threads and connections."""
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            if self._wired is not None:
                await self._wired.close()


@asynccontextmanager
async def join(
    checkpoint: str | Path,
    *,
    skeleton: SkeletonChoice = "auto",
    dtype: str = "",
    device: str = "cpu",
    rank: Rank | None = None,
    revision: str = "",
    worker: str = "",
    redis: str | None = None,
    settings: Settings | None = None,
    bus: Bus | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    wait: bool = True,
) -> AsyncIterator[Replica]:
    """Cold-start this process: weights from a peer, or from ``checkpoint``; then lend them.

    Args:
        checkpoint: directory with safetensors (one file or sharded) and, for ``transformers``,
            ``config.json``; or one safetensors file.
        skeleton: name of an installed builder, a builder, or a function that makes the module;
            ``auto`` takes ``transformers`` for a checkpoint with an architecture, if installed.
        dtype: requested dtype, such as ``bfloat16``; empty for the checkpoint's own.
        device: ``cpu`` or ``cuda[:N]``.
        rank: coordinates in a group; only equal ranks exchange weights.
        revision: separates versions that the files alone do not tell apart.
        worker: this worker's name, unique in the fleet; made from host and process id if empty.
        redis: URL of the store; see :class:`coldstart.config.Settings`.
        settings: everything else; read from the environment if None.
        bus: a bus of the caller's own instead of ``redis``; not closed here.
        on_progress: called on the loop's thread with progress; must be quick.
        wait: whether entering the block waits for SERVE. If not, use :meth:`Replica.ready`.

    Raises:
        ConfigError: a setting, the checkpoint, or a name is wrong.
        ColdStartFailed, IntegrityError, SkeletonError: no path led to verified weights.
    """
    name = worker or _own_name()
    if not is_id(name):
        raise ConfigError(f"worker name {name!r} is malformed", advice="use letters, digits and . _ : -, at most 96")
    if settings is not None and redis is not None:
        raise ConfigError("both settings and redis are given", advice="put the URL into the settings")
    chosen = settings or config.load({"redis": redis})
    replica = Replica(name, chosen, on_progress)

    def build() -> Built:
        assembly = import_module("coldstart.skeletons.assembly")
        order = assembly.Order(Path(checkpoint), skeleton, dtype, device, rank or Rank(), revision)
        return cast("Built", assembly.build(order))

    outcome: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            try:
                if wait:
                    await replica._start(build, bus, tasks)
                    await replica.ready()
                else:
                    tasks.start_soon(replica._run, partial(replica._start, build, bus, tasks))
                yield replica
            except BaseException as error:  # kept until everything is closed, then raised as it was
                outcome = error
            await replica._leave(graceful=outcome is None)
            replica._stop()
    finally:
        await replica._close()
    if outcome is not None:
        try:
            raise outcome
        finally:
            del outcome


_unnamed = itertools.count(1)


def _own_name() -> str:
    """Host, process, and, from the second replica of a process on, a number."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname().partition(".")[0])[:48] or "worker"
    number = next(_unnamed)
    return f"{host}-{getpid()}" if number == 1 else f"{host}-{getpid()}-{number}"
