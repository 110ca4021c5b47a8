"""What is moved: a module's carried tensors as one stream of bytes, cut into chunks.

Decides the order of the bytes, their alignment and the size of a chunk; compares two layouts
in words. It must not know torch, files or networks: a tensor here is a name, a dtype, a shape
and a place in a storage. Aliases (tied weights, views) share a storage and are sent once;
empty tensors have no bytes and are never sent.

The stream is the arena: storage ``i`` starts at ``starts[i]``, a multiple of 256 bytes, and the
gaps between storages are zeros that nobody needs to send. What the bytes are called is decided
in ``identity.py``.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise

import msgspec

ALIGNMENT = 256
"""Every storage starts on a multiple of this many bytes (vector loads, GPU transactions)."""

CHUNK_UNIT = 256 * 1024
"""Chunks are multiples of one digest row (``csfp1.py``)."""

MIN_CHUNK = 1024 * 1024
MAX_CHUNK = 64 * 1024 * 1024
TARGET_CHUNKS = 128

PARTS = 2
"""Parts that a stream is received in where a crowd joins at once: chunk c belongs to part c % PARTS."""


class Span(msgspec.Struct, frozen=True, order=True):
    """A range of the stream, in bytes."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


class Piece(msgspec.Struct, frozen=True):
    """The part of a span that falls into one storage; all in bytes."""

    storage: int
    within: int
    length: int
    offset: int
    """Where the piece starts in the stream."""


class Tensor(msgspec.Struct, frozen=True):
    """One named tensor: a view of a storage.

    ``shape`` and ``stride`` count elements, ``offset`` counts bytes from the storage's start.
    ``storage`` is the index into :attr:`Layout.storages`, or -1 for an empty tensor.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    storage: int
    offset: int


class Layout(msgspec.Struct, frozen=True, dict=True):
    """The carried tensors of one shard, in stream order.

    ``storages`` holds the size of each storage in bytes (never 0).
    """

    tensors: tuple[Tensor, ...]
    storages: tuple[int, ...]
    chunk_bytes: int

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Stream offset of each storage."""
        starts: list[int] = []
        end = 0
        for nbytes in self.storages:
            starts.append(end)
            end = align(end + nbytes)
        return tuple(starts)

    @cached_property
    def nbytes(self) -> int:
        """Length of the stream, padding included."""
        return align(self.starts[-1] + self.storages[-1]) if self.storages else 0

    @property
    def payload(self) -> int:
        """Bytes of weights, without padding."""
        return sum(self.storages)

    @property
    def chunks(self) -> int:
        """Number of chunks; the last one may be short."""
        return -(-self.nbytes // self.chunk_bytes)

    @cached_property
    def digest(self) -> str:
        """Hex BLAKE2b-128 of the layout: equal digests mean the same bytes in the same places."""
        return hashlib.blake2b(msgspec.msgpack.encode(self), digest_size=16).hexdigest()

    def chunk(self, index: int) -> Span:
        """The span of chunk ``index``; raises IndexError outside the layout."""
        if not 0 <= index < self.chunks:
            raise IndexError(f"chunk {index} of {self.chunks}")
        offset = index * self.chunk_bytes
        return Span(offset, min(self.chunk_bytes, self.nbytes - offset))

    def pieces(self, span: Span) -> Iterator[Piece]:
        """The parts of ``span`` that hold weights, in order; padding is skipped."""
        for index in range(self._first(span.offset), len(self.storages)):
            start = self.starts[index]
            if start >= span.end:
                return
            low = max(span.offset, start)
            high = min(span.end, start + self.storages[index])
            if low < high:
                yield Piece(index, low - start, high - low, low)

    @cached_property
    def _runs(self) -> tuple[Span, ...]:
        """The stream without its padding."""
        return merged(Span(start, nbytes) for start, nbytes in zip(self.starts, self.storages, strict=True))

    def weights(self, span: Span) -> Iterator[Span]:
        """The parts of ``span`` that hold weights, in order, as few as there are: a span for many storages."""
        runs = self._runs
        for index in range(max(bisect_right(runs, span.offset, key=_offset) - 1, 0), len(runs)):
            low, high = max(runs[index].offset, span.offset), min(runs[index].end, span.end)
            if runs[index].offset >= span.end:
                return
            if low < high:
                yield Span(low, high - low)

    def lying_in(self, span: Span) -> tuple[str, ...]:
        """Names of the tensors in whose storages ``span`` has bytes."""
        touched = {piece.storage for piece in self.pieces(span)}
        return tuple(tensor.name for tensor in self.tensors if tensor.storage in touched)

    def _first(self, offset: int) -> int:
        """Index of the last storage that starts at or before ``offset``."""
        low, high = 0, len(self.starts)
        while high - low > 1:
            middle = (low + high) // 2
            if self.starts[middle] <= offset:
                low = middle
            else:
                high = middle
        return low


def _offset(span: Span) -> int:
    return span.offset


def align(offset: int) -> int:
    """``offset`` rounded up to the next multiple of :data:`ALIGNMENT`."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def chunk_bytes_for(nbytes: int) -> int:
    """The chunk size of a stream of ``nbytes``: about 128 chunks, from 1 MiB to 64 MiB.

    A power of two, so that two workers with nearly equal streams agree on it.
    """
    size = MIN_CHUNK
    while size < MAX_CHUNK and size * TARGET_CHUNKS < nbytes:
        size *= 2
    return size


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """``spans`` in stream order with touching and overlapping ones joined."""
    result: list[Span] = []
    for span in sorted(spans):
        if span.length == 0:
            continue
        if result and span.offset <= result[-1].end:
            last = result.pop()
            result.append(Span(last.offset, max(last.end, span.end) - last.offset))
        else:
            result.append(span)
    return tuple(result)


def gaps(spans: Iterable[Span], within: Span) -> tuple[Span, ...]:
    """The parts of ``within`` that no span covers."""
    edges = [Span(within.offset, 0), *merged(spans), Span(within.end, 0)]
    return tuple(
        Span(left.end, right.offset - left.end)
        for left, right in pairwise(edges)
        if right.offset > left.end
    )


def differences(mine: Layout, theirs: Layout, limit: int = 5) -> tuple[str, ...]:
    """The first ``limit`` differences between two layouts, in words; empty when they are equal."""
    found: list[str] = []
    ours = {tensor.name: tensor for tensor in mine.tensors}
    others = {tensor.name: tensor for tensor in theirs.tensors}
    for name, tensor in ours.items():
        other = others.get(name)
        if other is None:
            found.append(f"{name}: here {_describe(tensor)}, there absent")
        elif (tensor.dtype, tensor.shape, tensor.stride) != (other.dtype, other.shape, other.stride):
            found.append(f"{name}: here {_describe(tensor)}, there {_describe(other)}")
    found.extend(
        f"{name}: here absent, there {_describe(tensor)}"
        for name, tensor in others.items()
        if name not in ours
    )
    if not found and [t.name for t in mine.tensors] != [t.name for t in theirs.tensors]:
        found.append(_order_difference(mine, theirs))
    if not found:
        found.extend(_placement_differences(mine, theirs))
    if len(found) > limit:
        found[limit:] = [f"and {len(found) - limit} more"]
    return tuple(found)


def _order_difference(mine: Layout, theirs: Layout) -> str:
    for at, (a, b) in enumerate(zip(mine.tensors, theirs.tensors, strict=False)):
        if a.name != b.name:
            return f"order: position {at} is {a.name} here, {b.name} there"
    return f"{len(mine.tensors)} tensors here, {len(theirs.tensors)} there"  # a name twice; only a peer may say so


def _placement_differences(mine: Layout, theirs: Layout) -> Iterator[str]:
    for a, b in zip(mine.tensors, theirs.tensors, strict=True):
        if (a.storage, a.offset) != (b.storage, b.offset):
            here, there = f"{a.storage}+{a.offset}", f"{b.storage}+{b.offset}"
            yield f"{a.name}: aliases or views another storage (here {here}, there {there})"
        elif a != b:
            yield f"{a.name}: here {_describe(a)}, there {_describe(b)}"
    for index, (ours, others) in enumerate(zip(mine.storages, theirs.storages, strict=False)):
        if ours != others:
            yield f"storage {index}: {ours} bytes here, {others} there"
    if len(mine.storages) != len(theirs.storages):
        yield f"{len(mine.storages)} storages here, {len(theirs.storages)} there"
    if mine.chunk_bytes != theirs.chunk_bytes:
        yield f"chunks of {mine.chunk_bytes} bytes here, {theirs.chunk_bytes} there"


def _describe(tensor: Tensor) -> str:
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    contiguous = tensor.stride == _contiguous(tensor.shape)
    return f"{tensor.dtype} {shape}" if contiguous else f"{tensor.dtype} {shape} stride {list(tensor.stride)}"


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    stride: list[int] = []
    step = 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))
