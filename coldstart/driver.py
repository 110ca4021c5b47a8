"""What only the CUDA driver can tell or be told, on a device that belongs to the host and has us as a guest.

Decides nothing about bytes, and knows no torch.

*Captures.* While any thread captures a graph (in the mode that is torch's default), CUDA refuses allocations and
synchronisations of every other thread and spoils the capture that they came into. What threads of ours do has nothing
to do with the host's graph, and they say so here: CUDA calls this the thread's capture mode. Beside a thread that
digested all the time 30 of 30 captures broke without it, on an H200, and none with it.

*Mappings.* An engine that goes to sleep takes the memory away from under its addresses, which stay what they were. A
kernel that reads there ends the whole process's use of the device, so we ask first.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

_NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: it does not wait for the default stream, nor that for it."""

_MAPPED = 13
"""CU_POINTER_ATTRIBUTE_MAPPED: whether there is memory behind an address."""

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


def new_stream(index: int) -> int:
    """The handle of a stream of device number ``index`` that is nobody else's; 0 where there is none to be had.

    Those that torch gives are handed out again and again, so one of them may be the one that the host captures.
    """
    driver, device, context = _driver(), ctypes.c_int(), ctypes.c_void_p()
    stream, before = ctypes.c_void_p(), ctypes.c_void_p()
    if driver is None or driver.cuDeviceGet(ctypes.byref(device), index):
        return 0
    if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) or driver.cuCtxPushCurrent_v2(context):
        return 0
    failed = driver.cuStreamCreate(ctypes.byref(stream), _NON_BLOCKING)
    driver.cuCtxPopCurrent_v2(ctypes.byref(before))
    return 0 if failed else stream.value or 0


def is_mapped(address: int) -> bool:
    """Whether there is device memory at ``address``; true where the driver cannot be asked. About 2 microseconds."""
    driver = _driver()
    if driver is None:
        return True
    mapped = ctypes.c_int(0)
    failed = driver.cuPointerGetAttribute(ctypes.byref(mapped), _MAPPED, ctypes.c_uint64(address))
    return not failed and bool(mapped.value)


@cache
def _driver() -> ctypes.CDLL | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return driver if hasattr(driver, "cuThreadExchangeStreamCaptureMode") else None
