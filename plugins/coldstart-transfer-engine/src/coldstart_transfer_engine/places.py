"""Where bytes of the stream lie in a worker's memory, and what has to be copied from where to where.

Pure arithmetic over offsets and addresses; it knows no library and no socket. Tables travel from
the source to the joiner (``line.py``); ``joiner.py`` turns them into reads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from coldstart.errors import TransportError
from coldstart.layout import Layout, Span, gaps, merged
from coldstart.ports import Region

MAX_PLACES: Final = 4096
"""More registrations than this are slow, and the library's own handshake has no room for them."""

_PLACE: Final = Struct("!QQQ")
PLACE_BYTES: Final = _PLACE.size


class Place(NamedTuple):
    """Bytes of the stream from ``offset`` on that lie together at ``address``."""

    offset: int
    address: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


class Move(NamedTuple):
    """One read: ``length`` bytes at the source's address ``remote`` into ours, ``local``."""

    local: int
    remote: int
    length: int


class Table:
    """The places of one memory, in stream order; neighbours are one place."""

    def __init__(self, places: Iterable[Place]) -> None:
        joined: list[Place] = []
        for place in sorted(places):
            last = joined[-1] if joined else None
            if last is not None and last.end == place.offset and last.address + last.length == place.address:
                joined[-1] = last._replace(length=last.length + place.length)
            elif place.length > 0:
                joined.append(place)
        self.places: Sequence[Place] = tuple(joined)
        self._offsets = [place.offset for place in joined]

    @classmethod
    def of(cls, regions: Iterable[Region]) -> Table:
        """The table of a memory. Raises TransportError for more places than can be registered."""
        table = cls(Place(region.offset, region.address, region.length) for region in regions)
        if len(table.places) > MAX_PLACES:
            raise TransportError(
                f"memory of {len(table.places)} pieces, the transfer engine takes at most {MAX_PLACES}",
                reason="unsupported",
            )
        return table

    def regions(self, device: str) -> Sequence[Region]:
        """The places as regions of ``device``, for registering them."""
        return [Region(device, place.address, place.length, place.offset) for place in self.places]

    def within(self, span: Span) -> Iterator[Place]:
        """The parts of places that are in ``span``, in order."""
        for place in self.places[max(bisect_right(self._offsets, span.offset) - 1, 0) :]:
            if place.offset >= span.end:
                return
            low, high = max(place.offset, span.offset), min(place.end, span.end)
            if low < high:
                yield Place(low, place.address + low - place.offset, high - low)

    def encode(self) -> bytes:
        return b"".join(_PLACE.pack(*place) for place in self.places)

    @classmethod
    def decode(cls, data: bytes) -> Table:
        """The table in ``data``, whose length is a multiple of :data:`PLACE_BYTES`."""
        return cls(Place(*fields) for fields in _PLACE.iter_unpack(data))


def moves(local: Table, remote: Table, span: Span) -> Iterator[Move]:
    """The reads that bring ``span`` over; what one side has no memory for (padding) is left out."""
    for ours in local.within(span):
        for theirs in remote.within(Span(ours.offset, ours.length)):
            yield Move(ours.address + theirs.offset - ours.offset, theirs.address, theirs.length)


def check(layout: Layout, local: Table, remote: Table, spans: Iterable[Span]) -> None:
    """Raises TransportError unless all weights in ``spans`` have memory on both sides."""
    for span in spans:
        for table, whose in ((local, "target"), (remote, "source")):
            covered = merged(Span(place.offset, place.length) for place in table.within(span))
            for gap in gaps(covered, span):
                for piece in layout.pieces(gap):
                    raise TransportError(
                        f"the {whose} has no memory for the bytes at {piece.offset}", reason="refused"
                    )
