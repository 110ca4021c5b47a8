"""A disk that breaks: faults at the system calls by which the product reads checkpoints.

``eio:N`` lets N reads through and then fails each with EIO; ``stall:N`` lets N reads through and
then answers none; ``hold:N`` lets N reads through and then waits as long as the gate is shut;
``headers:N`` lets N samples beside the headers through and then answers none. Several are given
with commas between. A real device that does so needs a kernel module; to the reader it
is the same.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rig.plugins import GATE_FILE

STUCK_FILE = "RIG_STUCK_FILE"
"""Made when a read does not return, or not soon."""


def break_reads(faults: str) -> None:
    after = {kind: int(good) for kind, _, good in (fault.partition(":") for fault in faults.split(","))}
    count, read = itertools.count(), os.preadv
    sampled, sample = itertools.count(), os.pread

    def stuck(descriptor: int, length: int, offset: int) -> bytes:
        if next(sampled) >= after["headers"]:
            _hang()
        return sample(descriptor, length, offset)

    def broken(descriptor: int, buffers: Sequence[memoryview], offset: int, flags: int = 0) -> int:
        done = next(count)
        due = {kind for kind, good in after.items() if done >= good}
        if "stall" in due:
            _hang()
        if "hold" in due:
            _wait_for_gate()
        if "eio" in due:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(descriptor, buffers, offset, flags)

    os.preadv = broken
    if "headers" in after:
        os.pread = stuck


def _wait_for_gate() -> None:
    Path(os.environ[STUCK_FILE]).touch()
    while Path(os.environ[GATE_FILE]).exists():
        time.sleep(0.01)


def _hang() -> NoReturn:
    Path(os.environ[STUCK_FILE]).touch()
    while True:
        threading.Event().wait()
