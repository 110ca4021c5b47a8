"""What a rollout takes on paper, in seconds from the first start until all workers have the weights.

Each formula counts bytes and links only: no coordination, no digests, nobody who fails. It decides what
``bench_fleet.py`` holds a simulated rollout against. All rates are in bytes per second, and every worker's
link has ``link`` in each direction. ``holders`` have the weights beforehand; where there are none, the first
worker reads storage at ``reader``.
"""

from __future__ import annotations

from math import ceil


def alone(nbytes: float, link: float, reader: float, holders: int) -> float:
    """One worker: from a holder, or else from storage, which crosses its link, too."""
    return nbytes / (link if holders else min(link, reader))


def storage_for_all(workers: int, nbytes: float, link: float, reader: float, storage: float) -> float:
    """Everybody reads storage at once, at ``reader`` each and at ``storage`` together."""
    return nbytes / min(link, reader, storage / workers)


def doubling(workers: int, nbytes: float, link: float, reader: float, holders: int, slots: int) -> float:
    """Only those lend that have everything, each to ``slots`` at a time, who share its link evenly.

    In rounds: with one slot each round doubles those that have the weights, with two it makes them three
    times as many but takes twice as long. A joiner that is alone in its round still takes a round of one.
    """
    first = 0 if holders else 1
    having, missing = holders or 1, workers - first
    seconds = first * alone(nbytes, link, reader, 0)
    while missing > 0:
        served = min(missing, having * slots)
        seconds += ceil(served / having) * nbytes / link
        having, missing = having + served, missing - served
    return seconds


def chain(workers: int, nbytes: float, chunk_bytes: float, link: float, reader: float, holders: int) -> float:
    """Everybody passes each chunk on to one other as soon as it is there: one more chunk's time per worker."""
    return alone(nbytes, link, reader, holders) + (workers - 1) * chunk_bytes / link


def pipeline(workers: int, nbytes: float, chunk_bytes: float, link: float, reader: float, holders: int) -> float:
    """The least that is possible where chunks are passed on whole: the last chunk still has to reach everybody.

    Those that have a chunk can double in the time of one chunk, so it takes the logarithm of the fleet more
    than one worker alone. (That every chunk can be spread so at once is a known result for full-duplex links.)
    """
    having, steps = max(holders, 1), 0
    while having < workers + holders:
        having, steps = 2 * having, steps + 1
    spread = steps - 1 if holders else steps
    return alone(nbytes, link, reader, holders) + max(spread, 0) * chunk_bytes / link
