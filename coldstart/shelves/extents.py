"""Which bytes of a file are there: sorted ranges that neither touch nor overlap, ends exclusive. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Extents = tuple[tuple[int, int], ...]


def union(*many: Iterable[tuple[int, int]]) -> Extents:
    """All bytes that are in one of ``many``."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(extent for extents in many for extent in extents if extent[0] < extent[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return tuple(found)


def covers(have: Extents, start: int, end: int) -> bool:
    """Whether every byte from ``start`` to ``end`` is in ``have``."""
    return start >= end or any(first <= start and end <= last for first, last in have)


def missing(have: Extents, size: int, most: int) -> Iterator[tuple[int, int]]:
    """What a file of ``size`` bytes lacks, in order, in pieces of at most ``most``."""
    at = 0
    for first, last in (*have, (size, size)):
        for start in range(at, first, most):
            yield start, min(start + most, first)
        at = max(at, last)
