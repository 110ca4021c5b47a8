"""The life of one replica: build, wire, run, drain, close.

Decides what owns the parts and what happens when something ends early. Everything runs in a task
of its own, not in the host's, so that nothing the host does with its own task (a failing task
group, a timeout, a cancellation) can reach in here, or the other way round. What the host sees of
it is ``replica.py``; what is run is ``wiring.py``'s and ``node.py``'s.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup

from coldstart import machine, wiring
from coldstart.config import Settings
from coldstart.errors import ColdstartError, ColdStartFailed, in_a_line
from coldstart.group import Group
from coldstart.node import Part
from coldstart.phases.states import Failed, Phase, State
from coldstart.policies import AtOnce, Prefer, source_bound
from coldstart.ports import Bus, Consensus
from coldstart.report import Progress, failure
from coldstart.runner import Entry
from coldstart.source import Source
from coldstart.telemetry import logger
from coldstart.wiring import Build, Wired

CLOSE_SECONDS = 3.0
"""What a cancelled host still waits for withdrawal and for readers to be quiet."""
ANSWER_SECONDS = 1.0
"""What a joiner that ends waits for answers under way: a slot granted too late is given back."""
JOURNAL_SECONDS = 1.0
"""What a worker that ends waits for its last lines in the journal to be written."""
PROGRESS_SECONDS = 0.05
"""Progress is told at most so often, and at every change of phase."""


class Session:
    """One replica's life, from :meth:`begin` to :meth:`close`.

    ``ready`` is set at SERVE or when that can no longer be reached, ``gone`` when nothing is lent
    any more; ``error`` is why SERVE was not reached. ``draining``: the host has asked for its end.
    """

    def __init__(
        self,
        build: Build,
        worker: str,
        device: str,
        settings: Settings,
        bus: Bus | None,
        tell: Callable[[Progress], None] | None,
        group: Group | None = None,
        consensus: Consensus | None = None,
        prefer: Prefer | None = None,
        at_once: AtOnce = source_bound,
    ) -> None:
        self.wired: Wired | None = None
        self.ready, self.gone, self.changed = anyio.Event(), anyio.Event(), anyio.Event()
        self.error: Exception | None = None
        self.draining = False
        self._build, self._worker, self._device, self._settings, self._bus = build, worker, device, settings, bus
        self._tell, self._group, self._consensus, self._prefer = tell, group, consensus, prefer
        self._at_once = at_once
        self._told = 0.0
        self._changes = 0
        self._began = anyio.current_time()
        self._over = anyio.Event()
        self._running: set[anyio.CancelScope] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def phase(self) -> Phase:
        if self.wired is not None:
            return machine.phase_of(self.wired.node.joiner.state)
        return Phase.IDLE if self.error is None else Phase.FAILED

    @property
    def elapsed(self) -> float:
        """Seconds since the cold start began."""
        return anyio.current_time() - self._began

    def begin(self) -> None:
        """Start; returns at once."""
        self._task = asyncio.create_task(self._run(), name=f"coldstart {self._worker}")

    def drain(self) -> None:
        """Stop lending, or, before SERVE, stop starting; ``gone`` tells when that is done."""
        self.draining = True
        if self.wired is not None:
            self.wired.node.drain()
        else:
            self._end(ColdstartError("drained before the weights had arrived"))
            self._stop()

    async def withhold(self) -> None:
        """Returns when nobody reads the weights and nobody is sent to them, until as many calls of :meth:`settle`."""
        self._changes += 1
        wired = self.wired
        if wired is None or self.gone.is_set():
            return
        wired.node.withhold()
        while wired.node.read and not self.gone.is_set():
            await self.changed.wait()

    def settle(self) -> None:
        """One change has ended; after the last the weights are to be lent again if they equal the truth."""
        self._changes -= 1
        if self.wired is not None and not self._changes:
            self.wired.node.settle()

    async def leave(self) -> None:
        """Drain, and give transfers in flight their time."""
        self.drain()
        with anyio.move_on_after(self._settings.drain + CLOSE_SECONDS):
            await self.gone.wait()

    async def close(self) -> None:
        """End everything now; must not be cancelled. Takes about three times CLOSE_SECONDS at most."""
        if self.wired is not None and not self.gone.is_set():
            self.wired.node.drain(at_once=True)
            with anyio.move_on_after(CLOSE_SECONDS):
                await self.gone.wait()
        if self.wired is not None:
            with anyio.move_on_after(ANSWER_SECONDS):
                await self.wired.node.joiner.done.wait()
            with anyio.move_on_after(JOURNAL_SECONDS):
                await self.wired.node.written()
        self._over.set()
        self._stop()
        if self._task is not None:
            with anyio.move_on_after(CLOSE_SECONDS):
                await asyncio.wait({self._task})
        if self.wired is not None:  # also when a thread that cannot be cancelled is still at work
            with anyio.move_on_after(CLOSE_SECONDS):
                await self.wired.close()

    # ----------------------------------------------------------------------------- in its own task

    async def _run(self) -> None:
        async with anyio.create_task_group() as tasks:
            await self._part(lambda: self._start(tasks))
            await self._over.wait()

    async def _start(self, tasks: TaskGroup) -> None:
        """Build, wire and set off."""
        limit = self._settings.build
        with anyio.move_on_after(limit):
            self.wired = await wiring.wire(
                self._build,
                self._worker,
                self._device,
                self._settings,
                self._bus,
                self._began,
                self._observe,
                self._lend_observe,
                self._group,
                self._consensus,
                self._prefer,
                self._at_once,
            )
        if self.wired is None:
            raise ColdStartFailed(f"the skeleton was not built within {limit:g} s", advice="see COLDSTART_BUILD")
        with self.wired.trace.current():  # what the parts log belongs to this cold start
            for part in (*self.wired.node.parts, self.wired.prepare):
                tasks.start_soon(self._part, part)
        self.wired.node.start()

    async def _part(self, part: Part) -> None:
        """Run one part until :meth:`_stop`; what goes wrong in it is what ``error`` says.

        The scope is of its own because the cancellation of a whole task leaves a traceback in a
        circle, which would hold the weights' memory until the garbage collector comes by.
        """
        with anyio.CancelScope() as scope:
            self._running.add(scope)
            if self._over.is_set() or self.gone.is_set():  # ended before this part had begun
                scope.cancel()
            try:
                await part()
            except Exception as error:
                if not isinstance(error, ColdstartError):
                    logger().error("coldstart broke", worker=self._worker, error=repr(error))
                self._end(error)
            except CancelledError:
                raise
            except BaseException as error:  # meant to stop everything; here it would stop one task, unseen
                logger().error("coldstart broke", worker=self._worker, error=repr(error))
                self._end(ColdstartError(f"coldstart broke: {in_a_line(error)}"))
        self._running.discard(scope)

    def _stop(self) -> None:
        for scope in self._running:
            scope.cancel()

    def _observe(self, entry: Entry[State]) -> None:
        """After each step of the joiner: wake whoever waits, and tell."""
        phase = machine.phase_of(entry.after)
        if self.wired is not None and isinstance(entry.after, Failed):
            self._end(failure(self.wired.recorder.report(), entry.after))
        elif phase is Phase.SERVE:
            self.ready.set()
        elif phase is Phase.GONE:
            self._end(None if self.ready.is_set() else ColdstartError("drained before the weights had arrived"))
        self._wake()
        changed = phase is not machine.phase_of(entry.before)
        if self._tell is not None and (changed or entry.at - self._told >= PROGRESS_SECONDS):
            self._told = entry.at
            self._tell_progress(self._tell)

    def _lend_observe(self, entry: Entry[Source]) -> None:
        self._wake()

    def _tell_progress(self, tell: Callable[[Progress], None]) -> None:
        """Call the host's callback; one that raises is not called again."""
        if self.wired is None:
            return
        try:
            tell(self.wired.recorder.progress())
        except Exception as error:  # the host's own; it must not cost it the weights
            self._tell = None
            logger().error("progress callback broke", worker=self._worker, error=repr(error))

    def _end(self, error: Exception | None) -> None:
        if not self.ready.is_set():
            self.error = error
        self.ready.set()
        self.gone.set()
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()
