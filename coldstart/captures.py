"""Work on a CUDA device beside a host that captures graphs there.

Decides nothing about bytes. While any thread captures a graph (in the mode that is torch's default), CUDA refuses
allocations and synchronisations of every other thread and spoils the capture that they came into. What happens in
threads of ours has nothing to do with the host's graph, and says so here: CUDA calls this the thread's capture mode.
Without it, of 30 captures beside a thread that digested all the time, all 30 broke; with it, none.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

_RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED: calls of this thread are not held against anybody's capture."""


@contextmanager
def apart_from_captures(device: str) -> Iterator[None]:
    """What the block does on ``device``, in this thread and on streams of its own, disturbs no capture."""
    driver = _driver() if device.startswith("cuda") else None
    if driver is None:
        yield
        return
    mode = ctypes.c_int(_RELAXED)
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))  # gives back the mode that it was
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


@cache
def _driver() -> ctypes.CDLL | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return driver if hasattr(driver, "cuThreadExchangeStreamCaptureMode") else None
