"""One request's bytes on their way: they come in pieces of the store's choice, and belong to reads of ours.

Decides which reads are whole by now, and forgets what was taken. It must not know where from or where to;
``objects.py`` does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from coldstart.transports.reads import Read, Request


class Arriving:
    """What is here of ``request``, in order; ``end`` is where in the file the next byte stands."""

    def __init__(self, request: Request) -> None:
        self.end = self._whole = request.offset
        self._left = deque(request.reads)
        self._pieces: deque[tuple[int, memoryview]] = deque()

    def add(self, piece: memoryview) -> tuple[int, Sequence[Read]]:
        """Take in the next bytes; the reads that are whole with them, and where in the file the first one begins."""
        self._pieces.append((self.end, piece))
        self.end += len(piece)
        begins, whole = self._whole, list[Read]()
        while self._left and self._whole + self._left[0].length <= self.end:
            whole.append(self._left.popleft())
            self._whole += whole[-1].length
        return begins, whole

    def take(self, at: int, view: memoryview) -> None:
        """Fill ``view`` with the bytes from ``at`` on, which are here; those before them are not asked for again.

        By numpy, which lets other threads run meanwhile, as the assignment of views does not.
        """
        while len(view):
            start, piece = self._pieces[0]
            if start + len(piece) <= at:
                self._pieces.popleft()
                continue
            part = piece[at - start : at - start + len(view)]
            np.copyto(np.frombuffer(view[: len(part)], np.uint8), np.frombuffer(part, np.uint8))
            at, view = at + len(part), view[len(part) :]
