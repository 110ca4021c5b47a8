"""A disk that breaks: faults at the one system call by which the product reads weights.

``eio:N`` lets N reads through and then fails each with EIO; ``stall:N`` lets N reads through and
then answers none; ``slow:N`` lets N reads through and then takes half a second for each. Several
are given with commas between. A real device that does so needs a kernel module; to the reader it
is the same.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from collections.abc import Sequence

SLOW_SECONDS = 0.5


def break_reads(faults: str) -> None:
    after = {kind: int(good) for kind, _, good in (fault.partition(":") for fault in faults.split(","))}
    count, read = itertools.count(), os.preadv

    def broken(descriptor: int, buffers: Sequence[memoryview], offset: int, flags: int = 0) -> int:
        done = next(count)
        due = {kind for kind, good in after.items() if done >= good}
        if "stall" in due:
            threading.Event().wait()
        if "slow" in due:
            time.sleep(SLOW_SECONDS)
        if "eio" in due:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(descriptor, buffers, offset, flags)

    os.preadv = broken
