"""CUDA streams that are ours alone, for copies and digests beside what the host does.

Decides that nothing of ours is ever queued on a stream of the host's. A stream is used again when whoever had it is
gone, and never destroyed: torch goes on asking streams about memory that was once used on them. It must not know
what runs on them (``arena.py``, ``rowsums.py``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from weakref import finalize

import torch

from coldstart import driver

# Typed here because torch leaves them untyped.
_external: Callable[[int, torch.device], torch.cuda.Stream] = torch.cuda.ExternalStream
_of_torch: Callable[[torch.device], torch.cuda.Stream] = torch.cuda.Stream

_event: Callable[[], torch.cuda.Event] = torch.cuda.Event

_idle: defaultdict[int, list[int]] = defaultdict(list)
"""Handles by number of the device; a list's ``append`` and ``pop`` are safe in any thread."""


class OwnStream:
    """A stream of ``device`` for as long as this lives; one of torch's where the driver gives none."""

    def __init__(self, device: torch.device) -> None:
        index = device.index if device.index is not None else torch.cuda.current_device()
        idle = _idle[index]
        try:
            handle = idle.pop()
        except IndexError:
            handle = driver.new_stream(index)
        self.stream = _external(handle, device) if handle else _of_torch(device)
        if handle:
            finalize(self, idle.append, handle).atexit = False


def await_default(device: torch.device) -> None:
    """Return when what is queued on the default stream of ``device`` now is done: hosts write weights there.

    On other devices there is nothing to wait for.
    """
    if device.type == "cuda":
        with driver.apart_from_captures("cuda"):
            queued = _event()
            queued.record(torch.cuda.default_stream(device))
            queued.synchronize()
