"""A few reads in flight, none of them left before its end.

Decides how the library is kept busy and when it is quiet. Each read is a call of its own with one entry,
because a call with several reports the first failure while the others go on writing. All looking is done in one
thread; which thread begins a read is in ``lanes.py``. It must not know lines or grants (``joiner.py``).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, Protocol

from coldstart.errors import TransportError
from coldstart.layout import Span
from coldstart_transfer_engine import library
from coldstart_transfer_engine.lanes import Lane
from coldstart_transfer_engine.library import Route
from coldstart_transfer_engine.places import Move

READS: Final = 64
"""Reads in flight, where steps are made of small pieces."""
MIB: Final = 1024 * 1024
SMALLEST_STEP: Final = 1 * MIB
LARGEST_STEP: Final = 512 * MIB
"""1.4 ms of NVLink, which moves 395 GB/s in steps of this size, and 370 in those of 64 MiB (measured)."""
LAST_STEP: Final = 128 * MIB
_SHORT_SECONDS: Final = 0.05
_LONG_SECONDS: Final = 0.2
_SHORTEST_PAUSE: Final = 50e-6
_LONGEST_PAUSE: Final = 2e-3
_PAUSES: Final = 16
"""Looks in the time of a step, while others are in flight behind it; for the last one, nothing moves but by looking."""
_GRACE_SECONDS: Final = 0.25
"""Reads from a source that works end in this."""


class Reading(Protocol):
    """What is used of an engine (``library.Engine``)."""

    def read(self, session: str, local: int, remote: int, length: int) -> int: ...
    def status(self, read: int) -> int: ...


class Step:
    """A range of the stream on its way, as one or more reads."""

    def __init__(self, span: Span, moves: Iterable[Move]) -> None:
        self.span = span
        self.waiting = deque(moves)
        self.flying = 0
        self.began = time.monotonic()

    @property
    def done(self) -> bool:
        return not self.waiting and not self.flying


class Reads:
    """The reads of one pull from one session.

    Args:
        cut: makes reads fail whose source has stopped.
    """

    def __init__(self, engine: Reading, session: str, lanes: Sequence[Lane], cut: Callable[[], None]) -> None:
        self._engine, self._session, self._cut = engine, session, cut
        self._lanes = {lane: deque[Step]() for lane in lanes}
        self._asked: dict[Lane, deque[Step]] = {lane: deque() for lane in lanes}
        self._flying: dict[int, Step] = {}
        self._pause, self._longest = _SHORTEST_PAUSE, _LONGEST_PAUSE
        self._moved = time.monotonic()

    def look(self, seconds: float) -> None:
        """Raises TransportError if no read has ended for so long."""
        if time.monotonic() - self._moved > seconds:
            raise TransportError(f"no read of the transfer engine has ended for {seconds:g} s", reason="timeout")

    @property
    def steps(self) -> int:
        """Steps that are not done."""
        return sum(map(len, self._lanes.values()))

    @property
    def room(self) -> bool:
        """Whether another step can be begun at once."""
        return any(len(steps) < lane.depth for lane, steps in self._lanes.items())

    def add(self, step: Step) -> None:
        """Begin a step, as far as there is room in flight. Raises TransportError if the library refuses."""
        if not self._outstanding:
            self._moved = time.monotonic()
        lane = min(self._lanes, key=lambda each: len(self._lanes[each]) / each.depth)
        self._lanes[lane].append(step)
        self._begin()

    def finished(self) -> Iterator[Step]:
        """The steps that have become done, in any order; waits a little when there is none.

        Raises:
            TransportError: a read was refused, or has failed. Others go on: see :meth:`drain`.
        """
        ended = self._ended()
        self._moved = time.monotonic() if ended else self._moved
        if any(status == library.FAILED for _, status in ended):
            raise TransportError("a read of the transfer engine failed", reason="failed")
        self._begin()
        done = [step for steps in self._lanes.values() for step in steps if step.done]
        if done:
            taken = time.monotonic() - done[0].began
            self._longest = min(max(taken / _PAUSES, _SHORTEST_PAUSE), _LONGEST_PAUSE)
            for lane, steps in self._lanes.items():
                self._lanes[lane] = deque(step for step in steps if not step.done)
            yield from done
            self._pause = self._longest if self.steps > 1 else _SHORTEST_PAUSE
        elif not ended:
            time.sleep(self._pause)
            self._pause = min(self._pause * 1.5, self._longest)

    def drain(self) -> None:
        """Return when no read is in flight any more, whatever became of it: nothing is written after that.

        Reads that do not end by themselves are made to fail, where the route allows it.
        """
        for steps in self._lanes.values():
            steps.clear()
        patience = time.monotonic() + _GRACE_SECONDS
        while self._outstanding:
            self._note_begun()
            if not self._ended():
                time.sleep(_LONGEST_PAUSE)
                if time.monotonic() > patience:  # more than once: what was queued takes a new connection
                    self._cut()

    @property
    def _outstanding(self) -> int:
        """Reads that may write: begun, or asked for."""
        return len(self._flying) + sum(map(len, self._asked.values()))

    def _begin(self) -> None:
        for lane, steps in self._lanes.items():
            for step in steps:
                while step.waiting and self._outstanding < READS:
                    move = step.waiting.popleft()
                    step.flying += 1
                    self._asked[lane].append(step)
                    lane.add(partial(self._engine.read, self._session, move.local, move.remote, move.length))
        if not self._note_begun():
            raise TransportError("the transfer engine cannot read from the source", reason="failed")

    def _note_begun(self) -> bool:
        """Follow the reads that lanes have begun meanwhile; false if one was refused."""
        taken = True
        for lane, asked in self._asked.items():
            for number in lane.begun():
                step = asked.popleft()
                if number:
                    self._flying[number] = step
                else:
                    step.flying -= 1
                    taken = False
        return taken

    def _ended(self) -> list[tuple[Step, int]]:
        """The reads that have reached their final status since the last call."""
        ended = [
            (number, status)
            for number in self._flying
            if (status := self._engine.status(number)) in (library.DONE, library.FAILED)
        ]
        found: list[tuple[Step, int]] = []
        for number, status in ended:
            step = self._flying.pop(number)
            step.flying -= 1
            found.append((step, status))
        return found


class Sizes:
    """How long the next step may be: so that one takes about a tenth of a second, at any speed.

    Over NVLink they begin large, since even the largest takes less than a millisecond. The last ones get shorter,
    so that little is left to verify when the last byte has landed.
    """

    def __init__(self, route: Route) -> None:
        self._size = LARGEST_STEP if route == "nvlink" else SMALLEST_STEP

    def next(self, rate: float, left: int) -> int:
        """Bytes; ``rate`` is the source's cap in bytes per second, 0 for none, ``left`` what is still to be read."""
        if rate:
            return max(64 * 1024, int(min(self._size, rate * 2 * _SHORT_SECONDS)))
        return min(self._size, max(left // 2, LAST_STEP))

    def took(self, seconds: float) -> None:
        """Learn from a step that took so long."""
        if seconds < _SHORT_SECONDS:
            self._size = min(self._size * 2, LARGEST_STEP)
        elif seconds > _LONG_SECONDS:
            self._size = max(self._size // 2, SMALLEST_STEP)
