"""A disk that breaks: faults at the one system call by which the product reads weights.

``eio:N`` lets N reads through and then fails each with EIO; ``stall:N`` lets N reads through and
then answers none; ``slow:N`` lets N reads through and then takes a second for each. A real device that does so needs a kernel module; to the reader it is the same.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from collections.abc import Sequence


def break_reads(fault: str) -> None:
    kind, _, after = fault.partition(":")
    good, count, read = int(after), itertools.count(), os.preadv

    def broken(descriptor: int, buffers: Sequence[memoryview], offset: int, flags: int = 0) -> int:
        if next(count) < good:
            return read(descriptor, buffers, offset, flags)
        if kind == "stall":
            threading.Event().wait()
        if kind == "slow":
            time.sleep(1.0)
            return read(descriptor, buffers, offset, flags)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    os.preadv = broken
