"""CUDA streams that are ours alone, for copies and digests beside what the host does.

Decides that nothing of ours is ever queued on a stream of the host's, and that ours end with whoever uses them. It
must not know what runs on them (``arena.py``, ``rowsums.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import finalize

import torch

from coldstart import driver

# Typed here because torch leaves them untyped.
_external: Callable[[int, torch.device], torch.cuda.Stream] = torch.cuda.ExternalStream
_of_torch: Callable[[torch.device], torch.cuda.Stream] = torch.cuda.Stream


class OwnStream:
    """A stream of ``device`` for as long as this lives; one of torch's where the driver gives none."""

    def __init__(self, device: torch.device) -> None:
        index = device.index if device.index is not None else torch.cuda.current_device()
        handle = driver.new_stream(index)
        self.stream = _external(handle, device) if handle else _of_torch(device)
        if handle:
            finalize(self, driver.end_stream, handle).atexit = False  # the process's end is the context's, too
