"""What a link rate is, which of two counts, what is asked for first, and what is too slow.

Pure arithmetic on facts that others measured (``meter.py``) or remembered (``memory.py``). It must not know
clocks, files or transports. ``recorder.py`` puts the results into the report.

Rates are in bytes per second, ages and moments in seconds; GB/s are 10^9 bytes per second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, assert_never

import msgspec

Origin = Literal["probe", "transfer", "none"]
"""What a rate was seen in; ``none``: there is no rate."""

Floor = Literal["gbps", "share"]
"""What a transfer may be under: a rate, or a share of its link's."""

WEEK = 7 * 86_400.0
"""A rate is believed for so long: links are rewired, drivers are changed."""

LEAST_BYTES = 4 << 20
"""A movement of less says nothing about the link."""


class Path(msgspec.Struct, frozen=True):
    """Between what a rate was measured: two places, each a host and a device, and what carried the bytes.

    ``route`` is what the transport says that it ran over, empty where it cannot tell. Of storage, ``there`` is
    empty and ``remote`` is where it is mounted.
    """

    here: str
    device: str
    there: str
    remote: str
    transport: str
    route: str = ""


class Rate(msgspec.Struct, frozen=True):
    """The best that a path was seen to give; ``at`` is in seconds since 1970."""

    bytes_per_second: float
    origin: Origin
    at: float


class Moved(msgspec.Struct, frozen=True):
    """Bytes that landed, and the time in which they did."""

    nbytes: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Bytes per second; 0 where there were too few to tell."""
        return self.nbytes / self.seconds if self.nbytes >= LEAST_BYTES and self.seconds > 0 else 0.0


class Passage(msgspec.Struct, frozen=True):
    """One pull: how fast its bytes came while they came, beside the best that its path has given.

    ``link`` is 0 and ``origin`` ``none`` where that is not known. ``age`` is that of the measurement.
    """

    source: str
    transport: str
    route: str
    moved: Moved
    link: float = 0.0
    origin: Origin = "none"
    age: float = 0.0

    @property
    def share(self) -> float:
        """Of the link's rate; 0 where either is not known."""
        return self.moved.rate / self.link if self.link > 0 else 0.0


class Floors(msgspec.Struct, frozen=True):
    """What the operator wants to be warned under: GB/s, and the share of the link's rate; 0: never."""

    gbps: float = 0.0
    share: float = 0.0


def is_fresh(rate: Rate, now: float) -> bool:
    """Whether a rate is to be believed; one from the future is not: its age cannot be told."""
    return 0 <= now - rate.at < WEEK


def best(known: Rate | None, found: Rate | None) -> Rate | None:
    """The one that counts: a link can do what it has done."""
    if known is None or found is None:
        return known or found
    return found if found.bytes_per_second > known.bytes_per_second else known


def cautious(known: Rate | None, found: Rate) -> Rate:
    """The one that counts of storage: the lower, or half-way up.

    Unlike a link it is shared with strangers, and a file that was read a moment ago comes from memory.
    """
    if known is None or found.bytes_per_second <= known.bytes_per_second:
        return found
    return Rate((known.bytes_per_second + found.bytes_per_second) / 2, found.origin, found.at)


def preferred(order: Sequence[str], rates: Mapping[str, float]) -> tuple[str, ...]:
    """``order`` with the quickest first of those in ``rates``, which share the places that they had.

    What was never measured keeps the place that its kind of link gives it, so that it gets its turn.
    """
    measured = iter(sorted((name for name in order if name in rates), key=lambda name: -rates[name]))
    return tuple([next(measured) if name in rates else name for name in order])


def joined(passages: Iterable[Passage]) -> tuple[Passage, ...]:
    """One passage for each way from each source, whatever number of pulls it took."""
    ways: dict[tuple[str, str, str], Passage] = {}
    for each in passages:
        way = (each.source, each.transport, each.route)
        before = ways.get(way, each)
        if before is not each:
            moved = Moved(before.moved.nbytes + each.moved.nbytes, before.moved.seconds + each.moved.seconds)
            each = msgspec.structs.replace(each if each.link >= before.link else before, moved=moved)
        ways[way] = each
    return tuple(ways.values())


def missed(passage: Passage, floors: Floors) -> tuple[Floor, ...]:
    """The floors that a passage is under."""
    found: list[Floor] = []
    if 0 < passage.moved.rate < floors.gbps * 1e9:
        found.append("gbps")
    if 0 < passage.share < floors.share:
        found.append("share")
    return tuple(found)


def shortfalls(passage: Passage, floors: Floors) -> tuple[str, ...]:
    """What to warn of, in words."""
    return tuple(_shortfall(passage, floors, floor) for floor in missed(passage, floors))


def _shortfall(passage: Passage, floors: Floors, floor: Floor) -> str:
    gave = f"{_words(passage)} gave"
    match floor:
        case "gbps":
            return f"{gave} {passage.moved.rate / 1e9:.3g} GB/s, under the floor of {floors.gbps:g} GB/s"
        case "share":
            return (
                f"{gave} {passage.share:.2f} of the {passage.link / 1e9:.3g} GB/s"
                f" that its link has given, under the floor of {floors.share:g}"
            )
        case _:
            assert_never(floor)


def _words(passage: Passage) -> str:
    way = passage.transport if passage.route in ("", passage.transport) else f"{passage.transport} ({passage.route})"
    return f"{passage.source} over {way}"
