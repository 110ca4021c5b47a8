"""The order in which ``coldstart journal --follow`` prints what comes.

Decides how long a line is held back, so that one that happened before it and comes after it is printed before it.
Workers write up to two seconds behind, so a line is held for HOLD_SECONDS from when it was first seen; what comes later
still (a source's loans come ten seconds' worth together, a store may have been away) is printed when it comes, marked.

Pure: time is what the caller says. It is the reader's own: how far its clock is from the store's does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from msgspec.structs import replace

from coldstart.cli.journal_words import Item

HOLD_SECONDS = 3.0
"""A worker's lines are two seconds old at most when they are written, and are looked for every second."""

_at = attrgetter("at")


class InOrder:
    """Holds lines back until they can be told in order."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str, int]] = set()
        self._held: dict[tuple[str, str, int], Item] = {}
        self._seen: dict[tuple[str, str, int], float] = {}
        self._told_to = float("-inf")

    def begin(self, items: Iterable[Item], now: float, last: int = 0) -> list[Item]:
        """Take what is there when the reader comes; all but the newest seconds of it is told at once.

        Args:
            last: so many are wanted, 0 for all; the others are as good as told.
        """
        history = sorted(items, key=_at)
        wanted = history[-last:]
        self._known.update(item.key for item in history[: -len(wanted)])
        self._take(wanted, now)
        newest = wanted[-1].at if wanted else 0.0
        return self._tell(newest - HOLD_SECONDS)

    def take(self, items: Iterable[Item], now: float) -> list[Item]:
        """Take what is there ``now`` (seconds, steady), what was there before among it; returns what to print."""
        self._take(items, now)
        due = [item.at for key, item in self._held.items() if now - self._seen[key] >= HOLD_SECONDS]
        return self._tell(max(due, default=float("-inf")))

    def rest(self) -> list[Item]:
        """What is still held back, for a reader that leaves."""
        return self._tell(float("inf"))

    def _take(self, items: Iterable[Item], now: float) -> None:
        for item in items:
            if item.key not in self._known:
                self._known.add(item.key)
                self._seen[item.key] = now
                self._held[item.key] = item
            elif item.key in self._held:
                self._held[item.key] = item  # its moment may be known better by now

    def _tell(self, moment: float) -> list[Item]:
        """All that happened until ``moment``, and what comes too late to be held."""
        ready = sorted((item for item in self._held.values() if item.at <= max(moment, self._told_to)), key=_at)
        found = [replace(item, late=item.at < self._told_to) for item in ready]
        for item in ready:
            del self._held[item.key], self._seen[item.key]
            self._told_to = max(self._told_to, item.at)
        return found
