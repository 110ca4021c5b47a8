"""The event heap: virtual time, one seeded source of luck, and the trace that proves a run repeated.

Everything that happens in a simulation is a call that this heap makes at its moment; calls of one
moment come in the order in which they were asked for. It knows nothing of workers or stores. What
is simulated with it begins in ``fleet.py``.
"""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Callable
from heapq import heappop, heappush


class Heap:
    """Virtual seconds from 0 on.

    Args:
        seed: of :attr:`luck`, which nothing but the simulation draws from.
    """

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.luck = random.Random(seed)
        self.events = 0
        self.trace: list[float] = []
        """Alternately the moment and the number of each step of a machine."""
        self._queue: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []

    def at(self, when: float, call: Callable[..., object], *args: object) -> None:
        """Call at the moment ``when``, or now if that has passed."""
        self.events += 1
        heappush(self._queue, (max(when, self.now), self.events, call, args))

    def after(self, seconds: float, call: Callable[..., object], *args: object) -> None:
        """Call ``seconds`` from now."""
        self.events += 1
        heappush(self._queue, (self.now + seconds, self.events, call, args))

    def run(self, until: float) -> None:
        """Make all calls due up to ``until``; then it is ``until``."""
        queue = self._queue
        while queue and queue[0][0] <= until:
            self.now, _, call, args = heappop(queue)
            call(*args)
        self.now = until

    def clear(self) -> None:
        """Forget all calls that are still to come."""
        self._queue.clear()

    @property
    def trace_hash(self) -> str:
        """Names the run: equal for equal steps at equal moments."""
        return hashlib.blake2b(array("d", self.trace).tobytes(), digest_size=16).hexdigest()
