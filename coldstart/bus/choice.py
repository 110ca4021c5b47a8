"""What an advert is worth to a claim: whether its worker will do, and who of several is best.

Decides the order of reasons and of ranks, by the rules of ``scripts/choice.py``. It must not know
when adverts and slots lapse (``roster.py``) nor who waits for them (``line.py``), and it has no clock.

A claim looks at up to 64 adverts, so whatever does not depend on the claim is worked out when it
changes. Everything is in the order given: the same calls give the same answers in every process.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from coldstart.bus.limits import MAX_SKIPS
from coldstart.ports import EXCLUDED, MAX_HOSTS, PARTS, Advert, Claim, Skip

_WORST = (-1.0, 0, 0)
"""Below the rank of whoever has a free slot."""

_ALL_PARTS = tuple(range(PARTS))

_SAME_HOST, _SAME_RACK, _ELSEWHERE = 2, 1, 0

_Rank = tuple[float, ...]


class Standing:
    """One worker: its advert while that lives, and the slots that it has lent, which may outlive it."""

    __slots__ = (
        "advert", "complete", "ends", "have", "incarnation", "layout", "of_parts", "parts", "rank", "refusal", "slots",
        "struck", "told", "transports", "unfit", "usable", "used", "worker",
    )  # fmt: skip

    def __init__(self, advert: Advert) -> None:
        self.worker = advert.worker
        self.incarnation = ""
        self.advert: Advert | None = None
        self.ends = math.inf
        self.slots: dict[str, float] = {}
        """End of each slot by transfer; of lapsed ones too, until the next grant."""
        self.used = 0
        self.of_parts: set[str] = set()
        """Transfers in ``slots`` that are of one part each."""
        self.struck = False
        self.told = advert
        """The advert as others are told it: with what the bus fills in."""
        self.layout = advert.layout
        self.transports = advert.transports
        self.have, self.complete = advert.have, False
        self.parts = _ALL_PARTS
        self.unfit = False
        """Struck or empty: of no use to anybody, even with a free slot."""
        self.usable = False
        self.refusal: Skip | None = None
        """Why nobody can use it, if so."""
        self.rank = _WORST

    def assess(self, advert: Advert) -> None:
        """Work out what ``advert`` is worth with the slots now in use and the doubts there are."""
        used, struck = self.used, self.struck
        free = advert.slots - used
        self.told = msgspec.structs.replace(advert, used=used, struck=struck) if used or struck else advert
        self.layout, self.transports = advert.layout, advert.transports
        self.have, self.complete = advert.have, advert.have >= advert.total
        self.parts = tuple(sorted(set(advert.parts))) or _ALL_PARTS
        self.unfit = struck or advert.have <= 0
        reason = "struck" if struck else "empty" if advert.have <= 0 else "busy" if free <= 0 else ""
        self.usable = not reason
        self.refusal = Skip(self.worker, reason, advert.layout) if reason else None
        # Less loaded first, then more free slots, then more chunks.
        self.rank = _WORST if reason else (-used / advert.slots, free, advert.have)

    def lend(self, transfer: str, until: float, now: float, *, of_part: bool) -> None:
        """Take a slot, of one part or of everything."""
        if len(self.slots) > self.used:
            self.slots = {name: ends for name, ends in self.slots.items() if ends > now}
        self.slots[transfer] = until
        self.used = len(self.slots)
        if of_part:
            self.of_parts.add(transfer)
        else:
            self.of_parts.discard(transfer)

    def end(self, transfer: str, now: float) -> bool:
        """Give a slot back; whether it was in use."""
        self.of_parts.discard(transfer)
        if self.slots.pop(transfer, now) <= now:
            return False
        self.used -= 1
        return True

    def lapse(self, now: float) -> bool:
        """Count the slots anew; whether any has lapsed."""
        used = sum(ends > now for ends in self.slots.values())
        if used == self.used:
            return False
        self.used = used
        self.of_parts = {transfer for transfer in self.of_parts if self.slots[transfer] > now}
        return True

    def forget_slots(self) -> None:
        self.slots.clear()
        self.of_parts.clear()
        self.used = 0


class Wait(NamedTuple):
    """What the line means for a claim at one moment.

    ``seconds`` is how long it has waited since anything moved; a grant would be of ``part``, or of everything (-1).
    """

    seconds: float
    part: int


PATIENT = Wait(math.inf, -1)
"""Of a claim that would share any source by now."""


class Sources(NamedTuple):
    """What is told of several sources together; see :class:`coldstart.ports.Queue`."""

    slots: int
    used: int
    rate: int
    hosts: tuple[str, ...]


class Survey(NamedTuple):
    """The equally good best sources, and the first of those passed over.

    ``busy``: any of these at all is only taken; ``lacking``: or has only nothing of the part that is wanted.
    ``taken``: those that are only taken, and complete.
    """

    best: list[Standing]
    skipped: tuple[Skip, ...]
    busy: bool
    lacking: bool
    taken: Sources | None = None


class Seeker:
    """A claim as it looks for a source."""

    __slots__ = ("_excluded", "_near", "_transports", "claim")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self._excluded = {claim.worker, *claim.exclude}
        self._transports = frozenset(claim.transports)
        self._near = bool(claim.host or claim.rack)

    def refusal(self, standing: Standing, wait: Wait) -> Skip | None:
        """Why ``standing``, whose advert is alive, will not do for a claim that has waited like this."""
        claim = self.claim
        if standing.worker in self._excluded:
            reason = EXCLUDED
        elif standing.layout != claim.layout:
            reason = "layout"
        elif standing.transports != claim.transports and not self._shares(standing):
            reason = "transports"
        elif not standing.unfit and (lack := self._lack(standing, wait.part)):
            reason = lack
        elif standing.refusal is not None:
            return standing.refusal
        elif wait.seconds < claim.share_seconds and standing.used > (len(standing.of_parts) if wait.part >= 0 else 0):
            reason = "shared"
        else:
            return None
        return Skip(standing.worker, reason, standing.layout)

    def _lack(self, standing: Standing, part: int) -> str:
        """Why ``standing`` has nothing that is new to this joiner, if so."""
        # Of those who have less than everything and wait for one another, whoever has most must find all others behind.
        if self.claim.part < 0 and not standing.complete and standing.have <= self.claim.have:
            return "behind"
        return "part" if part >= 0 and part not in standing.parts else ""

    def _shares(self, standing: Standing) -> bool:
        return not (self._transports and self._transports.isdisjoint(standing.transports))

    def survey(self, listed: Iterable[Standing], wait: Wait, *, first: bool = False) -> Survey:
        """Judge each of ``listed``, or those up to the first that will do."""
        best: list[Standing] = []
        best_rank: _Rank = ()
        refusal_of, near = self.refusal, self._near
        skipped: list[Skip] = []
        taken: list[Standing] = []
        busy = lacking = False
        for standing in listed:
            refusal = refusal_of(standing, wait)
            if refusal is None:
                rank: _Rank = (self._nearness(standing), *standing.rank) if near else standing.rank
                if rank == best_rank:
                    best.append(standing)
                elif rank > best_rank:
                    best, best_rank = [standing], rank
                if first:
                    break
                continue
            if refusal.reason in ("busy", "shared"):
                busy = True
                if standing.complete:
                    taken.append(standing)
            lacking = lacking or refusal.reason == "part"
            if len(skipped) < MAX_SKIPS:
                skipped.append(refusal)
        return Survey(best, tuple(skipped), busy, lacking, None if best or not taken else _together(taken))

    def _nearness(self, standing: Standing) -> int:
        advert, claim = standing.told, self.claim
        if claim.host and advert.host == claim.host:
            return _SAME_HOST
        return _SAME_RACK if claim.rack and advert.rack == claim.rack else _ELSEWHERE


def _together(taken: list[Standing]) -> Sources:
    adverts = [standing.told for standing in taken]
    return Sources(
        slots=sum(advert.slots for advert in adverts),
        used=sum(advert.used for advert in adverts),
        rate=max(advert.rate for advert in adverts),
        hosts=tuple(dict.fromkeys(advert.host for advert in adverts))[:MAX_HOSTS],
    )
