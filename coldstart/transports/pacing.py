"""How fast a source may send: one token bucket shared by all its connections.

Decides when the next bytes may go. It neither sleeps nor reads a clock, so that its callers can
be interrupted and tests need no time. Used by ``tcp_source.py``.
"""

from __future__ import annotations

import threading
from typing import Final

_BURST_SECONDS: Final = 0.01
"""A sender that was late may catch up so much of its rate at once."""
_MIN_QUANTUM: Final = 1024
_MAX_QUANTUM: Final = 256 * 1024


class Pace:
    """A cap in bytes per second.

    Senders reserve before they send and wait as long as they are told. Reservations are served
    in order, so connections share the rate evenly; unused time is forgotten after 10 ms, so a
    pause is not followed by a burst.
    """

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0
        self._lock = threading.Lock()

    @property
    def quantum(self) -> int:
        """Bytes to reserve at a time: about 10 ms worth, which keeps the flow smooth."""
        return max(_MIN_QUANTUM, int(min(self._rate * _BURST_SECONDS, _MAX_QUANTUM)))  # the rate may be infinite

    def reserve(self, count: int, now: float) -> float:
        """Take ``count`` bytes at time ``now``; returns the seconds to wait before sending them."""
        with self._lock:
            start = max(self._free_at, now - _BURST_SECONDS)
            self._free_at = start + count / self._rate
            return max(0.0, start - now)
