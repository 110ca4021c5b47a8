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
from coldstart.transports.placement import FLOAT32, Placement
from coldstart.transports.widening import stored_length

READ_BYTES: Final = 8 * 1024 * 1024
"""Bytes per read: what a cancelled pull still waits for."""
_MAX_PIECES: Final = 512
"""Pieces per read: bounds the views of one call."""


class Read(msgspec.Struct, frozen=True):
    """Consecutive bytes of a file into consecutive pieces of the stream, in one call.

    ``landed`` also covers the padding around the pieces, so that the landed spans of a pull
    together are exactly what was asked for. One that is ``widened`` (``widening.py``) has one piece.
    """

    file: Path
    offset: int
    pieces: tuple[Piece, ...]
    landed: Span
    widened: bool = False

    @property
    def target(self) -> Span:
        start = self.pieces[0].offset
        return Span(start, self.pieces[-1].offset + self.pieces[-1].length - start)

    @property
    def length(self) -> int:
        """Bytes of the file."""
        length = sum(piece.length for piece in self.pieces)
        return stored_length(self.skipped, length) if self.widened else length

    @property
    def skipped(self) -> int:
        """Bytes of the first number that are not wanted, where it is widened."""
        return self.pieces[0].within % FLOAT32 if self.widened else 0


class Request(msgspec.Struct, frozen=True):
    """Reads of one file whose bytes follow each other in it, wherever they go; ``length`` is that of all."""

    file: Path
    offset: int
    length: int
    reads: tuple[Read, ...]


class _Part(msgspec.Struct, frozen=True):
    """A piece of the stream that is consecutive in a file, from ``offset`` on."""

    piece: Piece
    file: Path
    offset: int
    widened: bool


def planned(pieces: Iterable[Piece], span: Span, placement: Placement, read_bytes: int) -> list[Read]:
    """The reads of one span, in stream order; their ``landed`` spans tile it."""
    groups = list(_grouped(pieces, placement, read_bytes))
    starts = [span.offset, *(group[0].piece.offset for group in groups[1:])]
    ends = [*starts[1:], span.end]
    return [
        Read(
            file=group[0].file,
            offset=group[0].offset,
            pieces=tuple(part.piece for part in group),
            landed=Span(start, end - start),
            widened=group[0].widened,
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
            for at in range(0, extent.length, read_bytes):
                length = min(read_bytes, extent.length - at)
                part = Piece(piece.storage, extent.within + at, length, start + at)
                (found,) = placement.located(part)
                yield _Part(part, found.file, found.offset, found.widened)


def _continues(group: Sequence[_Part], part: _Part, read_bytes: int) -> bool:
    last = group[-1]
    return (
        not (last.widened or part.widened)
        and len(group) < _MAX_PIECES
        and part.piece.offset + part.piece.length - group[0].piece.offset <= read_bytes
        and last.file == part.file
        and last.offset + last.piece.length == part.offset
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
