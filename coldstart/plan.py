"""Pure arithmetic of a cold start: sets of chunks, limits, and what to do when a source fails.

Decides which chunks are still missing and how patience is spent. It must not know phases,
clocks or transports. The facts it works on come as events (``events``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice

import msgspec

from coldstart.layout import PARTS, Layout, Span, merged


class Chunks(msgspec.Struct, frozen=True):
    """An immutable set of chunk numbers, held as the bits of one integer."""

    bits: int = 0

    @classmethod
    def of(cls, chunks: Iterable[int]) -> Chunks:
        bits = 0
        for chunk in chunks:
            bits |= 1 << chunk
        return cls(bits)

    @classmethod
    def first(cls, count: int) -> Chunks:
        """The chunks 0 to ``count - 1``."""
        return cls((1 << count) - 1)

    @classmethod
    def decoded(cls, data: bytes) -> Chunks:
        """The set that :meth:`encoded` made ``data`` of."""
        return cls(int.from_bytes(data, "little"))

    def encoded(self) -> bytes:
        """One bit per chunk, the lowest first; as short as it can be."""
        return self.bits.to_bytes(-(-self.bits.bit_length() // 8), "little")

    def __and__(self, other: Chunks) -> Chunks:
        return Chunks(self.bits & other.bits)

    def __or__(self, other: Chunks) -> Chunks:
        return Chunks(self.bits | other.bits)

    def __sub__(self, other: Chunks) -> Chunks:
        return Chunks(self.bits & ~other.bits)

    def __contains__(self, chunk: int) -> bool:
        return bool(self.bits >> chunk & 1)

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __bool__(self) -> bool:
        return self.bits != 0

    def __iter__(self) -> Iterator[int]:
        bits = self.bits
        while bits:
            lowest = bits & -bits
            yield lowest.bit_length() - 1
            bits ^= lowest

    def add(self, chunk: int) -> Chunks:
        return Chunks(self.bits | 1 << chunk)

    def lowest(self, count: int) -> Chunks:
        """The first ``count`` of them, or all where there are fewer."""
        return Chunks.of(islice(self, max(count, 0)))


@lru_cache(maxsize=64)
def part_of(total: int, part: int) -> Chunks:
    """The chunks of one part, of ``total`` chunks in all: in a crowd each part comes from a source of its own."""
    return Chunks.of(range(part, total, PARTS))


def parts_in(have: Chunks, total: int) -> tuple[int, ...]:
    """The parts of which ``have`` has something; empty for all of them."""
    parts = tuple([part for part in range(PARTS) if have & part_of(total, part)])
    return parts if len(parts) < PARTS else ()


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long and how often, in seconds and counts. Every wait of the joiner is one of these.

    Args:
        patience: all time lost on peers and coordination in one cold start, before storage is
            used. Time in which bytes arrive at ``floor`` does not count, nor does following a live loader.
        answer: a source answers a handshake within this, or the next one is asked.
        connect: a transport that connects before the first byte does it within this.
        stall: a transfer in which nothing lands for so long is abandoned.
        floor: bytes per second under which a transfer loses time: what it takes longer than at this
            rate counts as patience, and the source is left when that is spent. 0: any rate will do.
        sources: how many sources are tried.
        follow: live loaders are waited for so long altogether, then storage is read here too.
        retry: a joiner that stands in line asks again so often.
        share: a source that already lends to another is taken only after so long in line: whoever
            receives now will lend in a moment, over a link that nobody shares yet.
        crowd: where so many others stand in line, the stream comes in parts, each from a source of its own,
            so that a rollout's depth grows with the logarithm of its size; 0: never.
        quiet: an abandoned pull must be quiet within this.
        storage_stall: a storage read in which nothing lands for so long has failed.
        whole_load: a loader that brings everything at its end, with no progress before, takes at most this.
        check: the final self-check takes at most this.
        presence: a rank of a group that is not heard of for so long counts as a no; the others are waited for
            as long as ``follow``.
        margin: storage is read although there are sources where waiting for one is expected to take so many times
            as long; 0: never. See ``coldstart.estimate``.
        drain: transfers in flight may go on for so long after a drain is asked for.
    """

    patience: float = 5.0
    answer: float = 2.0
    connect: float = 3.0
    stall: float = 2.0
    floor: float = 10e6
    sources: int = 3
    follow: float = 300.0
    retry: float = 1.0
    share: float = 1.0
    crowd: int = 8
    quiet: float = 5.0
    storage_stall: float = 30.0
    whole_load: float = 600.0
    check: float = 60.0
    presence: float = 10.0
    drain: float = 10.0
    margin: float = 2.5


GRACE = 0.25
"""A transfer may fall behind by so many seconds however little patience is left when it begins."""


class Pace(msgspec.Struct, frozen=True):
    """How far a transfer has fallen behind the floor: a bucket that time fills and bytes drain.

    ``behind`` is in seconds, never negative: what came fast earns nothing for later. Whatever the
    source does, the transfer takes at most its bytes at the floor plus ``behind``.
    """

    since: float
    seen: float
    landed: int = 0
    behind: float = 0.0

    @classmethod
    def begun(cls, at: float) -> Pace:
        return cls(at, at)

    def landing(self, nbytes: int, floor: float, at: float) -> Pace:
        """The pace after ``nbytes`` more."""
        behind = max(0.0, self.behind + at - self.seen - nbytes / floor) if floor > 0 else 0.0
        return Pace(self.since, at, self.landed + nbytes, behind)

    def tolerance(self, patience: float) -> float:
        """Seconds that it may fall behind further; negative when it is too slow."""
        return max(patience, GRACE) - self.behind

    def lost(self, kept: int, floor: float, at: float) -> float:
        """Seconds lost when the transfer ends at ``at`` and only ``kept`` bytes of it are of use."""
        return max(0.0, at - self.since - kept / floor) if floor > 0 else at - self.seen

    def rate(self, at: float) -> float:
        """Bytes per second so far."""
        return self.landed / (at - self.since) if at > self.since else 0.0


def spans_of(layout: Layout, chunks: Chunks) -> tuple[Span, ...]:
    """The stream ranges of ``chunks``, neighbours merged."""
    return merged(layout.chunk(chunk) for chunk in chunks)


def payload_of(layout: Layout, chunks: Chunks) -> int:
    """Bytes of weights in ``chunks``, padding left out."""
    return sum(piece.length for span in spans_of(layout, chunks) for piece in layout.pieces(span))
