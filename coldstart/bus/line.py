"""The claims of one shard that stand in line for a source, in the order of their arrival.

Decides who has a place, for how long, who is next, whether a line is a crowd, and which part each is given
there; by the rules of ``scripts/line.py`` and ``scripts/parts.py``. It must not know what makes a source
usable (``choice.py``) nor what a grant is (``turn.py``), and has no clock.
Each layout has a line of its own: no source serves two.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from coldstart.bus.choice import Seeker, Wait
from coldstart.bus.leases import Leases
from coldstart.bus.limits import MAX_WAITING, MOVED_SECONDS
from coldstart.ports import PARTS, Claim


class Place:
    """One claim in line; ``since`` and ``until`` are moments in seconds."""

    __slots__ = ("role", "seeker", "since", "until")

    def __init__(self, claim: Claim, role: int, since: float, until: float) -> None:
        self.seeker, self.role, self.since, self.until = Seeker(claim), role, since, until


class Lines:
    """All lines of a shard."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, Place]] = {}
        self._layouts: dict[str, str] = {}
        self._moved: Leases[tuple[float, bool]] = Leases()
        """The moment of the last grant, and whether it was of a part, by layout."""
        self._arrived: Counter[str] = Counter()
        """Claims of everything that have come to each line: they take the parts by turns."""

    def __len__(self) -> int:
        """Claims in line, those that have given up and were not yet noticed among them."""
        return len(self._layouts)

    def place(self, transfer: str, layout: str, now: float) -> Place | None:
        """The place of a claim that stands in this line."""
        found = self._lines.get(layout, {}).get(transfer)
        return found if found is not None and found.until > now else None

    def wait(self, claim: Claim, now: float) -> Wait:
        """What standing in line, or not, means for ``claim`` now: a line that moves makes nobody impatient."""
        place = self.place(claim.transfer, claim.layout, now)
        at, of_part = self._moved.get(claim.layout, now) or (-math.inf, False)
        since = now if place is None else max(place.since, at)
        if claim.part >= 0:
            return Wait(now - since, claim.part)
        role = place.role if place is not None else self._arrived[claim.layout] % PARTS
        # A crowd lasts: the last few of it would keep a source from one another if each took everything.
        lasts = of_part and now - at < claim.share_seconds
        crowd = claim.crowd > 0 and (lasts or self._crowded(claim, now))
        return Wait(now - since, role if crowd else -1)

    def _crowded(self, claim: Claim, now: float) -> bool:
        line = self._lines.get(claim.layout, {})
        if len(line) < claim.crowd:
            return False
        others = (True for transfer, held in line.items() if held.until > now and transfer != claim.transfer)
        return sum(islice(others, claim.crowd)) == claim.crowd

    def taken(self, claim: Claim, now: float, *, of_part: bool) -> None:
        """Note that somebody has been granted a source of this layout; whoever stood nowhere has had its turn."""
        self._moved.put(claim.layout, (now, of_part), now, MOVED_SECONDS)
        if claim.part < 0 and self.place(claim.transfer, claim.layout, now) is None:
            self._arrived[claim.layout] += 1

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
            line[claim.transfer] = Place(claim, self._arrived[claim.layout] % PARTS, now, now + seconds)
            self._arrived[claim.layout] += claim.part < 0
            self._layouts[claim.transfer] = claim.layout

    def leave(self, transfer: str) -> None:
        """Give a place up; nothing happens where there is none."""
        layout = self._layouts.pop(transfer, None)
        if layout is not None:
            line = self._lines[layout]
            del line[transfer]
            if not line:
                del self._lines[layout]

    def count_ahead(self, claim: Claim) -> int | None:
        """Those before ``claim``, those that gave up and were not yet noticed among them; None: it has no place."""
        line = self._lines.get(claim.layout, {})
        if claim.transfer not in line:
            return None
        return next(at for at, transfer in enumerate(line) if transfer == claim.transfer)

    def ahead(self, layout: str, transfer: str, now: float) -> Iterator[Place]:
        """Those before ``transfer``, or all where it has no place; who is served on the way must leave."""
        for name, place in tuple(self._lines.get(layout, {}).items()):
            if name == transfer:
                return
            if place.until > now:
                yield place
            else:
                self.leave(name)
