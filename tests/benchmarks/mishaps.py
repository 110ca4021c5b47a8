"""Cases that go wrong, for the benchmark's own tests; run in its child processes."""

from __future__ import annotations

import os
import signal
import threading

from benchmarks.gpu.side import Task, Unable
from benchmarks.gpu.words import Figure

FIGURE = Figure("before", "GB/s", (1.0,))


def _begin(task: Task) -> None:
    if not task.lends:
        task.tell(FIGURE)
    task.peer.meet()


def well(task: Task) -> None:
    _begin(task)


def crash(task: Task) -> None:
    _begin(task)
    if task.lends:
        os.kill(os.getpid(), signal.SIGSEGV)
    task.peer.hear()


def fail(task: Task) -> None:
    _begin(task)
    if task.lends:
        task.peer.hear()
    raise RuntimeError("no such luck\nand more")


def refuse(task: Task) -> None:
    raise Unable("needs a miracle")


def hang(task: Task) -> None:
    _begin(task)
    print("waiting for nothing", flush=True)  # noqa: T201 - the last words of a case
    threading.Event().wait()
