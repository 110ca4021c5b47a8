"""Virtual time: an event loop whose clock jumps to the next timer when nothing else can happen.

    @pytest.fixture
    def anyio_backend() -> VirtualTime:
        return VIRTUAL_TIME

An hour of waiting costs nothing, and a program in which nothing can ever happen again raises
:class:`Deadlock` at once instead of hanging. While a worker thread of anyio runs, time stands
still and the loop waits for it, so that digests and self-checks take no virtual time; a thread
that waits for virtual time to pass therefore hangs. Other threads and real sockets are
invisible: a loop that waits only for them deadlocks. The suites that use it are in ``tests/``.

How fast a worker thread is decides what happens first within one moment. :class:`OrderlyLoop`
takes that out, so that a program does the same in every run.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import Callable
from contextvars import Context
from functools import partial
from operator import itemgetter
from typing import TypedDict, TypeVarTuple, Unpack

START = 1000.0
"""The first moment, in seconds; not 0, so that nothing works by being falsy."""

_POLL = 0.0005
_SOON = 0.00002

Arguments = TypeVarTuple("Arguments")


class Deadlock(RuntimeError):
    """Nothing is ready, no timer is set and no worker thread runs: nothing will ever happen."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time; usable as ``loop_factory``."""

    def __init__(self) -> None:
        self._virtual_now = START
        super().__init__(_Selector(self.pass_time, self.threads_run, self.turn))

    def time(self) -> float:
        return self._virtual_now

    def pass_time(self, seconds: float) -> None:
        """Move the clock; the loop's own selector calls this."""
        self._virtual_now += seconds

    def turn(self) -> bool:
        """Called between two turns of the loop; whether something is to be done in the next."""
        return False

    def threads_run(self) -> bool:
        """Whether one of anyio's worker threads has work of this loop."""
        return any(
            getattr(thread, "loop", None) is self and thread.queue.unfinished_tasks
            for thread in threading.enumerate()
            if hasattr(thread, "queue")
        )


class OrderlyLoop(VirtualTimeLoop):
    """Worker threads end their work between two turns, and are heard in the order in which they were started.

    Whatever waits in a worker thread for the loop therefore hangs.
    """

    def __init__(self) -> None:
        self._said: list[tuple[int, Callable[[], object]]] = []
        super().__init__()

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        thread = threading.current_thread()
        if getattr(thread, "loop", None) is not self:
            return super().call_soon_threadsafe(callback, *args, context=context)
        order = threading.enumerate().index(thread)
        self._said.append((order, partial(self.call_soon, callback, *args, context=context)))
        return asyncio.Handle(callback, args, self, context)

    def turn(self) -> bool:
        while self.threads_run():
            time.sleep(_SOON)
        said, self._said = self._said, []
        for _, call in sorted(said, key=itemgetter(0)):
            call()
        return bool(said)


class _Selector(selectors.DefaultSelector):
    def __init__(
        self, pass_time: Callable[[float], None], threads_run: Callable[[], bool], turn: Callable[[], bool]
    ) -> None:
        super().__init__()
        self._pass_time, self._threads_run, self._turn = pass_time, threads_run, turn

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._turn():
            timeout = 0
        if timeout is not None and timeout <= 0:
            return super().select(0)
        while self._threads_run():
            if events := super().select(_POLL):
                return events
        if events := super().select(0):  # of a thread that ended after the last look
            return events
        if timeout is None:
            raise Deadlock("nothing is ready, no timer is set, no worker thread runs")
        self._pass_time(timeout)
        return []


class VirtualTimeOptions(TypedDict):
    """Options of anyio's asyncio backend."""

    loop_factory: Callable[[], asyncio.AbstractEventLoop]


VirtualTime = tuple[str, VirtualTimeOptions]

VIRTUAL_TIME: VirtualTime = ("asyncio", {"loop_factory": VirtualTimeLoop})
"""What the fixture ``anyio_backend`` returns in modules whose tests run in virtual time."""
