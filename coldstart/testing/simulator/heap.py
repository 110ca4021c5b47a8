"""The event heap: virtual time, one seeded source of luck, and the trace that proves a run repeated.

Everything that happens in a simulation is a call that this heap makes at its moment; calls of one
moment come in the order in which they were asked for. It knows nothing of workers or stores. What
is simulated with it begins in ``fleet.py``.

It is a calendar queue: only the calls of the present slice of time are kept in order. Most calls that
are asked for long ahead are timers that nobody waits for when they run out, and in one heap for all
every other call would have to be compared with them.
"""

from __future__ import annotations

import hashlib
import math
import random
from array import array
from collections import defaultdict
from collections.abc import Callable
from heapq import heapify, heappop, heappush

SLICES = 16
"""Slices of time per virtual second: a power of two, so that products and quotients with it are exact."""

_Entry = tuple[float, int, Callable[..., object], tuple[object, ...]]


class Heap:
    """Virtual seconds from 0 on.

    Args:
        seed: of :attr:`luck`, which nothing but the simulation draws from.
    """

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.luck = random.Random(seed)
        self.events = 0
        self.trace = array("d")
        """Alternately the moment and the number of each step of a machine."""
        self._present = 0
        """The slice of time that it is now, which ends at:"""
        self._horizon = 1 / SLICES
        self._queue: list[_Entry] = []
        """A heap of the calls in the present slice; of earlier slices none are left."""
        self._later: defaultdict[int, list[_Entry]] = defaultdict(list)
        """The calls in each later slice, in no order."""

    def at(self, when: float, call: Callable[..., object], *args: object) -> None:
        """Call at the moment ``when``, or now if that has passed."""
        if when < self.now:
            when = self.now
        self.events += 1
        if when < self._horizon:
            heappush(self._queue, (when, self.events, call, args))
        else:
            self._later[int(when * SLICES)].append((when, self.events, call, args))

    def after(self, seconds: float, call: Callable[..., object], *args: object) -> None:
        """Call ``seconds`` from now."""
        when = self.now + seconds
        self.events += 1
        if when < self._horizon:
            heappush(self._queue, (when, self.events, call, args))
        else:
            self._later[int(when * SLICES)].append((when, self.events, call, args))

    def run(self, until: float) -> None:
        """Make all calls due up to ``until``; then it is ``until``."""
        last = int(until * SLICES)
        while self._present < last:
            self._play(math.inf)
            self._present += 1
            self._horizon = (self._present + 1) / SLICES
            self._queue = self._later.pop(self._present, [])
            heapify(self._queue)
        self._play(until)
        self.now = until

    def _play(self, until: float) -> None:
        queue = self._queue
        while queue and queue[0][0] <= until:
            self.now, _, call, args = heappop(queue)
            call(*args)

    def clear(self) -> None:
        """Forget all calls that are still to come."""
        self._queue.clear()
        self._later.clear()

    @property
    def trace_hash(self) -> str:
        """Names the run: equal for equal steps at equal moments."""
        return hashlib.blake2b(self.trace.tobytes(), digest_size=16).hexdigest()
