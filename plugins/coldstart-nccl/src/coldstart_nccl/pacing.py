"""How fast a source sends, and how much of its GPU that takes.

Decides when the next message may go, how large messages are under a cap, and how many thread
blocks the library may use. It neither sleeps nor reads a clock.
"""

from __future__ import annotations

import threading
from typing import Final

CTA_BYTES_PER_SECOND: Final = 35e9
"""What one thread block moves between two H200s."""

LINK_CTAS: Final = 16
"""Enough for an NVLink of an H200, at 35 GB/s each. A pair's set-up takes 3 ms for each of them: 45 ms with 2,
70 with 8, 150 with as many as NCCL would choose (measured)."""

_MESSAGE_SECONDS: Final = 0.1
"""Under a cap no message takes longer: what has landed is the only sign of life that a joiner gives."""
_SMALLEST: Final = 64 * 1024


class Pace:
    """A cap in bytes per second, shared by all who send; 0 for none. Unused time is forgotten."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0
        self._lock = threading.Lock()

    def reserve(self, count: int, now: float) -> float:
        """Take ``count`` bytes at time ``now``; returns the time at which they may be sent."""
        if not self._rate:
            return now
        with self._lock:
            start = max(self._free_at, now)
            self._free_at = start + count / self._rate
            return start

    def message_bytes(self, suited: int) -> int:
        """Bytes per message, where ``suited`` would be best without a cap."""
        return max(_SMALLEST, int(min(self._rate * _MESSAGE_SECONDS, suited))) if self._rate else suited

    def ctas(self, asked: int) -> int:
        """Thread blocks for communication: what the operator asked for, else as few as the cap or the link need."""
        if asked:
            return asked
        if not self._rate:
            return LINK_CTAS
        return 1 if self._rate <= CTA_BYTES_PER_SECOND else 2
