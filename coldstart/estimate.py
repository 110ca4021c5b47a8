"""How long waiting for a peer is expected to take, and how long storage: which of the two is to be taken.

Pure arithmetic on figures that were measured. Waiting is taken at its best (a link gives what it gave at best; a
line that was not watched for long takes no time) and storage at its worst (all its readers together get no more than
one got alone), so that storage is chosen only where it is clear. Where a figure is not known there is no estimate, and
nobody leaves for storage because of one. It must not know phases or the store: ``phases/weigh.py`` asks it
at the moments at which something can be changed, and the store counts the readers (``Bus.admit``).

Times are in seconds, sizes in bytes, rates in bytes per second.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

WATCH = 2.0
"""A line, or a transfer, is watched for so long before its pace counts."""

GAIN = 1.0
"""Storage is not taken to save less than this."""

READERS = 10_000
"""More readers of storage than that nobody needs to think of."""

Decision = Literal["wait", "ask", "storage", "full"]
"""``wait``: no storage. ``ask``: storage, if the store admits us to it; ``storage``: it did; ``full``: it would be
quicker, but as many as make it so read it already."""


class Way(msgspec.Struct, frozen=True):
    """Waiting for a peer, as far as it is known.

    Args:
        nbytes: what is missing.
        rate: at which it would come; 0: not known.
        measured: what that rate was seen in, in words.
        ahead: claims before ours in line; 0 for who has a source.
        moved: how many places the line has moved on while it was watched, for ``watched`` seconds.
    """

    nbytes: int
    rate: float
    measured: str
    ahead: int = 0
    moved: int = 0
    watched: float = 0.0

    @property
    def line(self) -> float:
        """Seconds until it is our turn, if at most one more leaves the line in as long as it was watched."""
        if self.watched < WATCH:
            return 0.0
        return (self.ahead + 1) * self.watched / (self.moved + 1)

    @property
    def seconds(self) -> float:
        """Until everything is here; infinite where the rate is not known."""
        return self.line + self.nbytes / self.rate if self.rate > 0 else math.inf


class Storage(msgspec.Struct, frozen=True):
    """Storage, as far as it is known: ``nbytes`` are read, ``rate`` is what it gave before (0: not known), and
    ``readers`` others read it now."""

    nbytes: int
    rate: float
    readers: int = 0

    @property
    def seconds(self) -> float:
        """Until everything is here, if all readers share what one has got."""
        return self.nbytes * (self.readers + 1) / self.rate if self.rate > 0 else math.inf


class Estimate(msgspec.Struct, frozen=True):
    """What was expected at the moment ``at``, and what was made of it.

    ``most`` is the number of readers, ourselves included, up to which storage is the better way; ``basis`` are
    the figures behind both, in words.
    """

    at: float
    waiting: float
    storage: float
    basis: tuple[str, ...]
    most: int
    decision: Decision

    @property
    def pending(self) -> bool:
        """Whether the store has been asked and has not answered."""
        return self.decision == "ask"

    def __str__(self) -> str:
        return f"waiting would take {self.waiting:.3g} s, storage {self.storage:.3g} s"


def estimate(way: Way, storage: Storage, margin: float, at: float) -> Estimate | None:
    """Which of the two is to be taken; None where a figure is not known, or ``margin`` is 0.

    Args:
        margin: waiting must take so many times as long as storage, and :data:`GAIN` longer.
    """
    if margin <= 0 or way.rate <= 0 or storage.rate <= 0 or storage.nbytes <= 0:
        return None
    worth = min(way.seconds / margin, way.seconds - GAIN)
    most = min(READERS, max(0, math.floor(worth * storage.rate / storage.nbytes)))
    decision: Decision = "wait" if most == 0 else "full" if storage.readers >= most else "ask"
    return Estimate(at, way.seconds, storage.seconds, _basis(way, storage), most, decision)


def lease(found: Estimate) -> float:
    """How long one who is admitted counts as a reader, unless it says before that it has done."""
    return found.waiting + GAIN


def _basis(way: Way, storage: Storage) -> tuple[str, ...]:
    facts = [f"{way.nbytes / 1e9:.3g} GB missing", f"{way.rate / 1e9:.3g} GB/s ({way.measured})"]
    if way.ahead or way.line:
        facts.append(f"{way.ahead} ahead in line")
    if way.line:
        facts.append(f"{way.moved} places in {way.watched:.3g} s")
    facts.append(f"storage {storage.rate / 1e9:.3g} GB/s, {storage.readers} others read it")
    return tuple(facts)
