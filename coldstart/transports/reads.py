"""Which bytes of which file go where: the reads that bring spans of a layout, few and large.

Decides how spans become reads. Pure; it must not know what files are: ``storage.py`` reads them from a disk,
``objects.py`` from an object store, where neighbours in a file are :func:`joined` to one request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from coldstart.layout import Piece, Span
from coldstart.transports.conversions import Conversion
from coldstart.transports.placement import Extent, Placement

READ_BYTES: Final = 8 * 1024 * 1024
"""Bytes per read: what a cancelled pull still waits for."""
_MAX_PIECES: Final = 512
"""Pieces per read: bounds the views of one call."""


class Read(msgspec.Struct, frozen=True):
    """Consecutive bytes of a file into consecutive pieces of the stream, in one call.

    ``landed`` also covers the padding around the pieces, so that the landed spans of a pull
    together are exactly what was asked for. One with a ``conversion`` has one piece, whose first and last number may
    be wanted in part.
    """

    file: Path
    offset: int
    pieces: tuple[Piece, ...]
    landed: Span
    conversion: Conversion | None = None

    @property
    def target(self) -> Span:
        start = self.pieces[0].offset
        return Span(start, self.pieces[-1].offset + self.pieces[-1].length - start)

    @property
    def length(self) -> int:
        """Bytes of the file."""
        length = sum(piece.length for piece in self.pieces)
        return length if self.conversion is None else self.conversion.stored_length(self.skipped, length)

    @property
    def skipped(self) -> int:
        """Bytes of the first number that are not wanted, where numbers are cast."""
        return 0 if self.conversion is None else self.pieces[0].within % self.conversion.carried_size


class Request(msgspec.Struct, frozen=True):
    """Reads of one file whose bytes follow each other in it, wherever they go; ``length`` is that of all."""

    file: Path
    offset: int
    length: int
    reads: tuple[Read, ...]


class _Part(msgspec.Struct, frozen=True):
    """A piece of the stream that is consecutive in a file."""

    piece: Piece
    extent: Extent


def planned(pieces: Iterable[Piece], span: Span, placement: Placement, read_bytes: int) -> list[Read]:
    """The reads of one span, in stream order; their ``landed`` spans tile it."""
    groups = list(_grouped(pieces, placement, read_bytes))
    starts = [span.offset, *(group[0].piece.offset for group in groups[1:])]
    ends = [*starts[1:], span.end]
    return [
        Read(
            file=group[0].extent.file,
            offset=group[0].extent.offset,
            pieces=tuple(part.piece for part in group),
            landed=Span(start, end - start),
            conversion=group[0].extent.conversion,
        )
        for group, start, end in zip(groups, starts, ends, strict=False)
    ]


def _grouped(pieces: Iterable[Piece], placement: Placement, read_bytes: int) -> Iterator[list[_Part]]:
    """Parts of one span that follow each other in one file; in the stream only padding is between them."""
    group: list[_Part] = []
    for part in _cut(pieces, placement, read_bytes):
        if group and not _continues(group, part, read_bytes):
            yield group
            group = []
        group.append(part)
    if group:
        yield group


def _cut(pieces: Iterable[Piece], placement: Placement, read_bytes: int) -> Iterator[_Part]:
    for piece in pieces:
        for extent in placement.located(piece):
            start = piece.offset + extent.within - piece.within
            for at, length in _steps(extent, read_bytes):
                part = Piece(piece.storage, extent.within + at, length, start + at)
                (found,) = placement.located(part)
                yield _Part(part, found)


def _steps(extent: Extent, read_bytes: int) -> Iterator[tuple[int, int]]:
    """``extent`` in parts of at most ``read_bytes``, here and in the file, as offsets and lengths; numbers stay whole
    where they are cast, but for those that the extent itself has in part."""
    step, begins = read_bytes, 0
    if (cast := extent.conversion) is not None:
        step = max(read_bytes // max(cast.stored_size, cast.carried_size), 1) * cast.carried_size
        begins = -(extent.within % cast.carried_size)
    for at in range(begins, extent.length, step):
        first = max(at, 0)
        yield first, min(at + step, extent.length) - first


def _continues(group: Sequence[_Part], part: _Part, read_bytes: int) -> bool:
    last = group[-1]
    return (
        last.extent.conversion is None
        and part.extent.conversion is None
        and len(group) < _MAX_PIECES
        and part.piece.offset + part.piece.length - group[0].piece.offset <= read_bytes
        and last.extent.file == part.extent.file
        and last.extent.offset + last.piece.length == part.extent.offset
    )


def joined(reads: Iterable[Read], most: int) -> list[Request]:
    """``reads`` in the order of the files, those that touch each other as one request of up to ``most`` bytes."""
    requests: list[Request] = []
    group: list[Read] = []
    length = 0
    for read in sorted(reads, key=lambda each: (each.file, each.offset)):
        follows = group and group[0].file == read.file and group[0].offset + length == read.offset
        if group and not (follows and length + read.length <= most):
            requests.append(Request(group[0].file, group[0].offset, length, tuple(group)))
            group, length = [], 0
        group.append(read)
        length += read.length
    if group:
        requests.append(Request(group[0].file, group[0].offset, length, tuple(group)))
    return requests


def selected(views: Sequence[memoryview], read: Read) -> Iterator[memoryview]:
    """The parts of ``views`` that belong to pieces, without the padding between them."""
    start = read.target.offset
    remaining = iter(views)
    view = memoryview(b"")
    for piece in read.pieces:
        position, end = piece.offset, piece.offset + piece.length
        while position < end:
            while position >= start + len(view):
                start += len(view)
                view = next(remaining)
            part = view[position - start : end - start]
            yield part
            position += len(part)
