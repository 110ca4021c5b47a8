"""Who begins reads: the thread that looks after them, or threads of their own.

Over NVLink the library copies on a CUDA stream of the thread that begins a read, and calls the read done when that
stream is empty. So all reads that one thread has begun end together, and the link idles until somebody has looked
and begun more: 8 % of a pull of 16 GB (measured on two H200s). Reads of several threads end one by one, and one
of them is under way while another one begins. Over TCP and RDMA one thread is enough.

It must not know what a read is part of, nor when it has ended (``reads.py``).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from queue import SimpleQueue
from typing import Final, Protocol

from coldstart_transfer_engine.library import Route
from coldstart_transfer_engine.surroundings import current

WINDOW: Final = 4
"""Steps that a thread has in flight where each ends by itself; the library's TCP has four connections to a peer."""
THREADS: Final = 3
"""Over NVLink: one copies, one follows it, and one is being looked at."""

Begin = Callable[[], int]
"""Begins one read: its number, or 0 if nothing was begun."""


class Lane(Protocol):
    """Begins reads, in the order in which it is asked to."""

    depth: int
    """Steps that may be in flight on it."""

    def add(self, begin: Begin) -> None:
        """Begin a read, now or soon."""
        ...

    def begun(self) -> Iterator[int]:
        """What :data:`Begin` gave for each read, once, in order."""
        ...


class OwnThread:
    """The thread that asks begins its reads itself."""

    def __init__(self, depth: int = WINDOW) -> None:
        self.depth = depth
        self._begun: deque[int] = deque()

    def add(self, begin: Begin) -> None:
        self._begun.append(begin())

    def begun(self) -> Iterator[int]:
        while self._begun:
            yield self._begun.popleft()


class OtherThread:
    """A thread that begins reads, with ``surroundings`` around all of them; :meth:`close` ends it."""

    depth = 1

    def __init__(self, surroundings: Callable[[], AbstractContextManager[None]]) -> None:
        self._surroundings = surroundings
        self._asked: SimpleQueue[Begin | None] = SimpleQueue()
        self._begun: deque[int] = deque()
        self._thread = threading.Thread(target=self._run, name="coldstart-te-lane", daemon=True)
        self._thread.start()

    def add(self, begin: Begin) -> None:
        self._asked.put(begin)

    def begun(self) -> Iterator[int]:
        while self._begun:
            yield self._begun.popleft()

    def close(self) -> None:
        """End the thread, after what it was asked for."""
        self._asked.put(None)
        self._thread.join()

    def _run(self) -> None:
        with suppress(Exception), self._surroundings():
            for begin in iter(self._asked.get, None):
                self._begun.append(_tried(begin))
            self._asked.put(None)
        for _ in iter(self._asked.get, None):  # without its surroundings nothing is begun
            self._begun.append(0)


def _tried(begin: Begin) -> int:
    """Somebody waits for the answer, whatever happens."""
    try:
        return begin()
    except Exception:
        return 0


@contextmanager
def opened(route: Route, device: str) -> Iterator[tuple[Lane, ...]]:
    """The lanes of one connection that reads into ``device`` over ``route``; at the end none may be in flight."""
    if route != "nvlink":
        yield (OwnThread(),)
        return
    lanes = tuple(OtherThread(lambda: current(device)) for _ in range(THREADS))
    try:
        yield lanes
    finally:
        for lane in lanes:
            lane.close()
