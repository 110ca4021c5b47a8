"""CSFP-1: 128 bits over every byte of a span, by numpy.

Decides what "these are the right bytes" means (algorithm ``csfp1``). A span is read as
little-endian signed 32-bit words w, counted from the span's first byte, in rows of 65,536
words (256 KiB); the last word is filled up with zeros. All arithmetic is modulo 2**64::

    y[lane, row] = sum over c of w[row, c] * K[lane, c]
    H[lane]      = sum over rows of mix(y[lane, row] ^ mix(s[lane] + (row + 1) * GOLD))
    D[lane]      = mix(H[lane] ^ mix(length + lane + 1))

K holds odd keys, s one seed a lane, both from SHAKE-128; mix is the 64-bit finaliser of
MurmurHash3, a bijection. Odd keys mean that a change of one word never vanishes; 32-bit words
in 64-bit sums mean that two changes of high bits do not cancel, which they do in every sum
over 64-bit words. Sums are linear inside a row, so a row may arrive in pieces; rows may be
summed in any order. Gaps between storages count as zeros and are never read as anything else.

A public key table makes this a check against damage, not against somebody who chooses bytes
to collide: truth must come from a worker that read storage. This module must not know memories
or devices: y is computed on a device in ``rowsums.py``, and ``digest.py`` chooses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

ALGORITHM = "csfp1"

LANES = 2
ROW_WORDS = 65_536
ROW_BYTES = 4 * ROW_WORDS

GOLD: NDArray[np.uint64] = np.array([0x9E3779B97F4A7C15], np.uint64)

BLOCK_WORDS = 16_384
GROUP_ROWS = 32
"""The CPU goes through 32 rows one quarter at a time, so that the keys stay in its second-level cache."""

_TABLE = hashlib.shake_128(ALGORITHM.encode()).digest(8 * LANES * (ROW_WORDS + 1))
_RAW: NDArray[np.uint64] = np.frombuffer(_TABLE, dtype="<u8")

KEYS: NDArray[np.int64] = (_RAW[: LANES * ROW_WORDS] | np.uint64(1)).view(np.int64).reshape(LANES, ROW_WORDS)
"""K: odd, as signed 64-bit numbers, (lanes, words of a row)."""

SEEDS: NDArray[np.uint64] = _RAW[LANES * ROW_WORDS :].reshape(LANES, 1)
"""s: one number a lane, (lanes, 1)."""


def row_count(length: int) -> int:
    """Rows of a span of ``length`` bytes."""
    return -(-length // ROW_BYTES)


def sums_of_views(views: Sequence[memoryview], length: int) -> NDArray[np.int64]:
    """y of ``length`` bytes that ``views`` hold together: int64 of shape (lanes, rows).

    One core, without the interpreter lock and with 8 MiB of temporaries at most: about 3 GB/s.
    """
    # numpy's integer dot product is scalar, but it needs no temporaries and is never worse than digits of
    # words and keys in exact float64 matrix products, which gain nothing once the words come from memory.
    sums = np.zeros((LANES, row_count(length)), np.int64)
    scratch = np.empty(BLOCK_WORDS, np.int64)
    rows = _rows(views)
    done = 0
    while group := list(islice(rows, GROUP_ROWS)):
        part = np.zeros((LANES, len(group)), np.int64)
        for start in range(0, ROW_WORDS, BLOCK_WORDS):
            for row, words in enumerate(group):
                block = words[start : start + BLOCK_WORDS]
                wide = scratch[: block.size]
                np.copyto(wide, block)
                for lane in range(LANES):
                    part[lane, row] = wide.dot(KEYS[lane, start : start + block.size])
            sums[:, done : done + len(group)] += part
        done += len(group)
    return sums


def _rows(views: Sequence[memoryview]) -> Iterator[NDArray[np.int32]]:
    """The words of each row: in place where a view holds the whole row, else collected."""
    collected = bytearray()
    for any_view in views:
        view = any_view.cast("B")
        at = min(ROW_BYTES - len(collected), len(view)) if collected else 0
        collected += view[:at]
        if len(collected) == ROW_BYTES:
            yield np.frombuffer(collected, "<i4")
            collected = bytearray()
        while len(view) - at >= ROW_BYTES:
            yield np.frombuffer(view[at : at + ROW_BYTES], "<i4")
            at += ROW_BYTES
        collected += view[at:]
    if collected:
        collected += bytes(-len(collected) % 4)
        yield np.frombuffer(collected, "<i4")


def finish(sums: NDArray[np.int64], lengths: Sequence[int]) -> list[bytes]:
    """The digests of spans of so many bytes from their y, one span after the other: int64 of shape (lanes, rows).

    Each has 16 bytes, lane 0 first, little-endian.
    """
    if not lengths:
        return []
    counts = tuple(map(row_count, lengths))
    mixed = _mix(sums.view(np.uint64) ^ _salts(counts))
    starts = np.cumsum([0, *counts[:-1]])
    if 0 in counts:
        ends = starts + counts
        folded = np.stack([mixed[:, at:end].sum(axis=1) for at, end in zip(starts, ends, strict=True)], axis=1)
    else:
        folded = np.add.reduceat(mixed, starts, axis=1)
    joined = _mix(folded ^ _endings(tuple(lengths))).astype("<u8").T.tobytes()
    return [joined[at : at + 8 * LANES] for at in range(0, len(joined), 8 * LANES)]


@lru_cache(16)
def _salts(counts: tuple[int, ...]) -> NDArray[np.uint64]:
    """What each row's y is mixed with, so that rows cannot change places; of spans of so many rows."""
    salts = [_mix(SEEDS + np.arange(1, rows + 1, dtype=np.uint64) * GOLD) for rows in counts]
    return np.concatenate(salts, axis=1)


@lru_cache(64)
def _endings(lengths: tuple[int, ...]) -> NDArray[np.uint64]:
    """What the sums of each span are mixed with, so that its length counts."""
    return _mix(np.array(lengths, np.uint64) + np.arange(1, LANES + 1, dtype=np.uint64).reshape(LANES, 1))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    x = (x ^ (x >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))
