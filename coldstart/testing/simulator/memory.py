"""The bytes of the simulation: one number per chunk, the same for the checkpoint and for every right copy.

Decides what a digest sees: a chunk's digest is its content, so that only equal content is equal. It
knows no machine; ``promises.py`` compares memories with the checkpoint behind the machines' backs.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

import msgspec

EMPTY = -1
"""Content of memory that nothing was written to."""

Content = list[int]
"""One worker's memory; it is replaced as a whole when a late writer may still reach it."""


def digest_of(content: int) -> bytes:
    """A chunk's digest as the bus carries it."""
    return content.to_bytes(16, "little", signed=True)


def content_of(digest: bytes) -> int:
    """The inverse of :func:`digest_of`."""
    return int.from_bytes(digest, "little", signed=True)


class Truth(msgspec.Struct, frozen=True):
    """The digests of all chunks, as they are published."""

    digests: tuple[int, ...]
    root: str
    record: bytes


class Checkpoint:
    """What storage holds, and the truths that were made of what was read."""

    def __init__(self, chunks: int) -> None:
        self.content: Content = list(range(1, chunks + 1))
        self._truths: dict[tuple[int, ...], Truth] = {}
        self._records: dict[bytes, Truth] = {}
        self._damage = itertools.count(-2, -1)

    def empty(self) -> Content:
        """Fresh memory."""
        return [EMPTY] * len(self.content)

    def damaged(self) -> int:
        """A wrong content, another one each time."""
        return next(self._damage)

    def truth(self, digests: Sequence[int]) -> Truth:
        """The truth that ``digests`` make."""
        key = tuple(digests)
        truth = self._truths.get(key)
        if truth is None:
            record = msgspec.msgpack.encode(key)
            truth = Truth(key, hashlib.blake2b(record, digest_size=16).hexdigest(), record)
            self._truths[key] = self._records[record] = truth
        return truth

    def decoded(self, record: bytes) -> Truth:
        """The truth in a published record."""
        return self._records[record]
