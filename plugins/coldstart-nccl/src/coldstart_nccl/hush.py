"""Whether a thread has left the memory that it was given, and what becomes of one that never does.

Decides when waiting ends: a thread that has been told to end and has not after 10 s hangs in the
library, which nobody can help. Then its device is spoilt: this process uses the library no more
on it. Known by the name of the device, for the life of the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from coldstart.errors import TransportError

HANG_SECONDS: Final = 10.0

_spoilt: set[str] = set()


def spoil(device: str) -> None:
    """The library hangs on ``device``, or has broken it."""
    _spoilt.add(device)


def spoilt(device: str) -> bool:
    """Whether the library hangs on ``device``; ``cuda`` without a number means any of them."""
    return any(device in (known, known.partition(":")[0]) for known in _spoilt)


def check(device: str) -> None:
    """Raises TransportError if the library must not be used on ``device`` any more."""
    if spoilt(device):
        raise TransportError(
            f"the communication library hung on {device} in this process",
            reason="spoilt",
            advice="restart the process to use it again",
        )


class Hush:
    """From "told to end" to "memory is quiet". Any thread.

    Args:
        changed: called once the memory is quiet, and once if that takes too long. From any thread.
    """

    def __init__(self, device: str, changed: Callable[[], None] = lambda: None) -> None:
        self._device, self._changed = device, changed
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self.quiet = False
        self.hung = False

    def expect(self) -> None:
        """The thread has been told to end, or has begun to."""
        with self._lock:
            if self.quiet or self._timer is not None:
                return
            self._timer = threading.Timer(HANG_SECONDS, self._hangs)
            self._timer.daemon = True
            self._timer.start()

    def reached(self, *, tell: bool = True) -> None:
        """Nothing touches the memory any more."""
        with self._lock:
            if self.quiet:
                return
            self.quiet = True
            if self._timer is not None:
                self._timer.cancel()
        if tell:
            self._changed()

    def _hangs(self) -> None:
        with self._lock:
            if self.quiet:
                return
            self.hung = True
        spoil(self._device)
        self._changed()
