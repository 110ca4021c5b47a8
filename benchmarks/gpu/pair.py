"""Runs each case in two processes of its own and passes on what they say.

Decides that no case can harm another: a side that crashes, hangs or loses its way ends both sides of its
own case, at its deadline at the latest, and what was said before is kept. The sides are forked from a
server that has imported torch and nothing more, because that import takes seconds. It must not know
what is measured.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import msgspec

from benchmarks.gpu import side
from benchmarks.gpu.words import Ended, Failed, Message, Order

ORPHAN_SECONDS = 5.0
"""How long the side that really failed has to say so after the other one has noticed."""
END_SECONDS = 5.0


class Side:
    """One process, and what it says."""

    def __init__(self, order: Order, peer: Connection) -> None:
        context = multiprocessing.get_context("forkserver")
        self.order = order
        self.out, theirs = context.Pipe()
        self.process: ForkServerProcess = context.Process(target=side.enter, args=(order, theirs, peer), daemon=True)
        self.process.start()
        theirs.close()

    def read(self) -> Message:
        """What it says next, or how it died."""
        try:
            message: Message = msgspec.json.decode(self.out.recv_bytes(), type=Message)
        except (EOFError, OSError):
            return Failed(f"{self.order.role} died: {self._death()}")
        return message

    def _death(self) -> str:
        self.process.join(END_SECONDS)
        code = self.process.exitcode
        how = signal.Signals(-code).name if code is not None and code < 0 else f"status {code}"
        return f"{how}{_last_words(Path(self.order.log))}"

    def end(self) -> None:
        """Kill it and everything that it started."""
        if self.process.pid is not None and self.process.is_alive():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
        self.process.join(END_SECONDS)
        self.out.close()


def warm() -> None:
    """Start the server that all sides are forked from."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(side.WARM))


def run(orders: tuple[Order, Order], seconds: float, hear: Callable[[Message], None]) -> str:
    """Run a case until both sides have ended; returns why it did not end well, or nothing.

    Args:
        seconds: after so long both sides are killed.
        hear: told of every figure as soon as it is said.
    """
    ours, theirs = multiprocessing.get_context("forkserver").Pipe()
    sides = [Side(order, peer) for order, peer in zip(orders, (ours, theirs), strict=True)]
    ours.close()
    theirs.close()
    try:
        return _follow(sides, time.monotonic() + seconds, seconds, hear)
    finally:
        for each in sides:
            each.end()


def _follow(sides: list[Side], until: float, seconds: float, hear: Callable[[Message], None]) -> str:
    by_pipe = {each.out: each for each in sides}
    orphaned = ""
    while by_pipe:
        ready = wait(list(by_pipe), max(0.0, until - time.monotonic()))
        if not ready:
            return orphaned or f"stopped after {seconds:.0f} s{_last_words(Path(sides[1].order.log))}"
        for pipe in ready:
            assert isinstance(pipe, Connection)
            match message := by_pipe[pipe].read():
                case Ended():
                    del by_pipe[pipe]
                case Failed(orphaned=True):
                    del by_pipe[pipe]
                    orphaned, until = message.reason, min(until, time.monotonic() + ORPHAN_SECONDS)
                case Failed():
                    return message.reason
                case _:
                    hear(message)
    return orphaned


def _last_words(log: Path) -> str:
    with suppress(OSError):
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        if lines:
            return f"; it last printed: {lines[-1][:160]}"
    return ""
