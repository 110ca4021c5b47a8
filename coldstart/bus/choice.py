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
from coldstart.ports import Advert, Claim, Skip

_WORST = (-1.0, 0, 0)
"""Below the rank of whoever has a free slot."""

_SAME_HOST, _SAME_RACK, _ELSEWHERE = 2, 1, 0

_Rank = tuple[float, ...]


class Standing:
    """One worker: its advert while that lives, and the slots that it has lent, which may outlive it."""

    __slots__ = (
        "advert", "complete", "ends", "have", "incarnation", "layout", "rank", "refusal", "slots", "struck", "told",
        "transports", "usable", "used", "worker",
    )  # fmt: skip

    def __init__(self, advert: Advert) -> None:
        self.worker = advert.worker
        self.incarnation = ""
        self.advert: Advert | None = None
        self.ends = math.inf
        self.slots: dict[str, float] = {}
        """End of each slot by transfer; of lapsed ones too, until the next grant."""
        self.used = 0
        self.struck = False
        self.told = advert
        """The advert as others are told it: with what the bus fills in."""
        self.layout = advert.layout
        self.transports = advert.transports
        self.have, self.complete = advert.have, False
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
        reason = "struck" if struck else "empty" if advert.have <= 0 else "busy" if free <= 0 else ""
        self.usable = not reason
        self.refusal = Skip(self.worker, reason, advert.layout) if reason else None
        # Less loaded first, then more free slots, then more chunks.
        self.rank = _WORST if reason else (-used / advert.slots, free, advert.have)


class Survey(NamedTuple):
    """The equally good best sources, the first of those passed over, and whether any at all is only taken."""

    best: list[Standing]
    skipped: tuple[Skip, ...]
    busy: bool


class Seeker:
    """A claim as it looks for a source."""

    __slots__ = ("_excluded", "_near", "_transports", "claim")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self._excluded = {claim.worker, *claim.exclude}
        self._transports = frozenset(claim.transports)
        self._near = bool(claim.host or claim.rack)

    def refusal(self, standing: Standing, waited: float) -> Skip | None:
        """Why ``standing``, whose advert is alive, will not do after ``waited`` seconds in line."""
        claim = self.claim
        if standing.worker in self._excluded:
            reason = "excluded"
        elif standing.layout != claim.layout:
            reason = "layout"
        elif standing.transports != claim.transports and not self._shares(standing):
            reason = "transports"
        elif not (standing.complete or standing.have > claim.have or standing.struck or standing.have <= 0):
            reason = "behind"
        elif standing.refusal is not None:
            return standing.refusal
        elif standing.used and waited < claim.share_seconds:
            reason = "shared"
        else:
            return None
        return Skip(standing.worker, reason, standing.layout)

    def _shares(self, standing: Standing) -> bool:
        return not (self._transports and self._transports.isdisjoint(standing.transports))

    def survey(self, listed: Iterable[Standing], waited: float, *, first: bool = False) -> Survey:
        """Judge each of ``listed``, or those up to the first that will do."""
        best: list[Standing] = []
        best_rank: _Rank = ()
        refusal_of, near = self.refusal, self._near
        skipped: list[Skip] = []
        busy = False
        for standing in listed:
            refusal = refusal_of(standing, waited)
            if refusal is None:
                rank: _Rank = (self._nearness(standing), *standing.rank) if near else standing.rank
                if rank == best_rank:
                    best.append(standing)
                elif rank > best_rank:
                    best, best_rank = [standing], rank
                if first:
                    break
                continue
            busy = busy or refusal.reason in ("busy", "shared")
            if len(skipped) < MAX_SKIPS:
                skipped.append(refusal)
        return Survey(best, tuple(skipped), busy)

    def _nearness(self, standing: Standing) -> int:
        advert, claim = standing.told, self.claim
        if claim.host and advert.host == claim.host:
            return _SAME_HOST
        return _SAME_RACK if claim.rack and advert.rack == claim.rack else _ELSEWHERE
