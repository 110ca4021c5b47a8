"""A disk that breaks: faults at the system calls by which the product reads checkpoints.

``eio:N`` lets N reads through and then fails each with EIO; ``stall:N`` lets N reads through and
then answers none; ``slow:N`` lets N reads through and then takes half a second for each;
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

SLOW_SECONDS = 0.5
STUCK_FILE = "RIG_STUCK_FILE"
"""Made when a read is not going to return."""


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
        if "slow" in due:
            time.sleep(SLOW_SECONDS)
        if "eio" in due:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(descriptor, buffers, offset, flags)

    os.preadv = broken
    if "headers" in after:
        os.pread = stuck


def _hang() -> NoReturn:
    Path(os.environ[STUCK_FILE]).touch()
    while True:
        threading.Event().wait()
