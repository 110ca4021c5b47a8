"""Lists of memoryviews, cut for system calls that take several buffers.

Decides how many buffers and bytes go into one ``sendmsg``, ``recvmsg_into`` or ``preadv``, and
what is left after a short one. Pure; it must not know sockets or files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

MAX_VIEWS: Final = 512
"""Views per system call, below IOV_MAX everywhere."""


def batches(views: Iterable[memoryview], size: int) -> Iterator[list[memoryview]]:
    """``views`` regrouped for one system call each: at most ``size`` bytes, and not too many views."""
    batch: list[memoryview] = []
    room = size
    for whole in views:
        view = whole
        while len(view):
            batch.append(view[:room])
            room -= len(batch[-1])
            view = view[len(batch[-1]) :]
            if room == 0 or len(batch) == MAX_VIEWS:
                yield batch
                batch, room = [], size
    if batch:
        yield batch


def advanced(views: list[memoryview], count: int) -> list[memoryview]:
    """What is left of ``views`` after their first ``count`` bytes."""
    for at, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[at + 1 :]]
        count -= len(view)
    return []
