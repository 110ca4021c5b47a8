"""The claims of one shard that stand in line for a source, in the order of their arrival.

Decides who has a place, for how long, and who is next; by the rules of ``scripts/line.py``. It must not
know what makes a source usable (``choice.py``) nor what a grant is (``turn.py``), and has no clock.
Each layout has a line of its own: no source serves two.
"""

from __future__ import annotations

from collections.abc import Iterator

from coldstart.bus.choice import Seeker
from coldstart.bus.limits import MAX_WAITING
from coldstart.ports import Claim


class Place:
    """One claim in line; ``since`` and ``until`` are moments in seconds."""

    __slots__ = ("seeker", "since", "until")

    def __init__(self, claim: Claim, since: float, until: float) -> None:
        self.seeker, self.since, self.until = Seeker(claim), since, until


class Lines:
    """All lines of a shard."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, Place]] = {}
        self._layouts: dict[str, str] = {}

    def __len__(self) -> int:
        """Claims in line, those that have given up and were not yet noticed among them."""
        return len(self._layouts)

    def place(self, transfer: str, layout: str, now: float) -> Place | None:
        """The place of a claim that stands in this line."""
        found = self._lines.get(layout, {}).get(transfer)
        return found if found is not None and found.until > now else None

    def stand(self, claim: Claim, now: float, seconds: float) -> None:
        """Take a place at the end, or keep the one there is; nothing happens where the line is too long."""
        place = self.place(claim.transfer, claim.layout, now)
        if place is not None:
            place.seeker, place.until = Seeker(claim), now + seconds
            return
        self.leave(claim.transfer)
        waiting = self._lines.get(claim.layout, {})
        if len(waiting) >= MAX_WAITING:
            for transfer in [transfer for transfer, held in waiting.items() if held.until <= now]:
                self.leave(transfer)
        line = self._lines.setdefault(claim.layout, {})
        if len(line) < MAX_WAITING:
            line[claim.transfer] = Place(claim, now, now + seconds)
            self._layouts[claim.transfer] = claim.layout

    def leave(self, transfer: str) -> None:
        """Give a place up; nothing happens where there is none."""
        layout = self._layouts.pop(transfer, None)
        if layout is not None:
            line = self._lines[layout]
            del line[transfer]
            if not line:
                del self._lines[layout]

    def ahead(self, layout: str, transfer: str, now: float) -> Iterator[Place]:
        """Those before ``transfer``, or all where it has no place; who is served on the way must leave."""
        for name, place in tuple(self._lines.get(layout, {}).items()):
            if name == transfer:
                return
            if place.until > now:
                yield place
            else:
                self.leave(name)
