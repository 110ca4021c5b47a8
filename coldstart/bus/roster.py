"""The adverts of one shard, slots and strikes included: who may be a joiner's source, and who is best.

Decides what an advert is worth to a claim and when adverts and slots lapse, by the rules of
``scripts.py``. It must not know letters, truths or leaders, nor a clock: each call says what time it
is. ``ledger.py`` joins it with the rest of the store.

A claim looks at up to 64 adverts, so whatever does not depend on the claim is worked out when it
changes, and lapses are found by one look at the earliest end. Everything is in the order of the
workers' names: the same calls give the same answers in every process.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from coldstart.bus.leases import Leases
from coldstart.bus.limits import MAX_SKIPS, SCAN, SHARD_SECONDS
from coldstart.ports import Advert, Claim, Skip

_WORST = (-1.0, 0, 0)
"""Below the rank of whoever has a free slot."""

_name = attrgetter("worker")


class Standing:
    """One worker: its advert while that lives, and the slots that it has lent, which may outlive it."""

    __slots__ = (
        "advert", "ends", "incarnation", "layout", "rank", "refusal", "slots", "struck", "told", "transports", "usable",
        "used", "worker",
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
        self.usable = False
        self.refusal: Skip | None = None
        self.rank = _WORST

    def assess(self, advert: Advert) -> None:
        """Work out what ``advert`` is worth with the slots now in use and the doubts there are."""
        used, struck = self.used, self.struck
        free = advert.slots - used
        self.told = msgspec.structs.replace(advert, used=used, struck=struck) if used or struck else advert
        self.layout, self.transports = advert.layout, advert.transports
        reason = "struck" if struck else "empty" if advert.have <= 0 else "busy" if free <= 0 else ""
        self.usable = not reason
        self.refusal = Skip(self.worker, reason, advert.layout) if reason else None
        # Less loaded first, then more free slots, then more chunks.
        self.rank = _WORST if reason else (-used / advert.slots, free, advert.have)


class Survey(NamedTuple):
    """The equally good best sources, the first of those passed over, and whether any at all is only busy."""

    best: Sequence[Standing]
    skipped: tuple[Skip, ...]
    busy: bool


class Roster:
    """All workers of a shard that advertise or have lent a slot. Moments and lives are in seconds."""

    def __init__(self) -> None:
        self._known: dict[str, Standing] = {}
        self._listed: list[Standing] = []
        """Those with a live advert, in the order of their names."""
        self._usable = 0
        self._due = math.inf
        """No advert and no slot lapses before."""
        self._strikes: Leases[tuple[str, int]] = Leases()
        """Incarnation and the last doubted proof, by worker: an advert that lapses does not shake a strike off."""

    def adverts(self, now: float) -> tuple[Advert, ...]:
        """The live adverts, with their slots in use."""
        self._settle(now)
        return tuple([standing.told for standing in self._listed])

    def find(self, worker: str, now: float) -> Advert | None:
        """The live advert of a worker, with its slots in use."""
        self._settle(now)
        standing = self._known.get(worker)
        return None if standing is None or standing.advert is None else standing.told

    def survey(self, claim: Claim, now: float) -> Survey:
        """Look at :data:`SCAN` adverts for a claim, and at more while none of them is usable."""
        self._settle(now)
        listed = self._listed
        if len(listed) <= SCAN:
            return _survey(listed, claim)
        start = claim.luck % len(listed)
        survey = _survey(listed[start : start + SCAN] + listed[: max(start + SCAN - len(listed), 0)], claim)
        # The reasons are full by now, so if nobody has a free slot for anybody, more looking finds nothing new.
        if survey.best or (survey.busy and not self._usable):
            return survey
        return _survey(listed[start:] + listed[:start], claim, first=True)

    def advertise(
        self, advert: Advert, now: float, seconds: float, held: Sequence[str], ended: Sequence[str]
    ) -> bool:
        """Make or renew an advert; whether it says anything new."""
        self._settle(now)
        standing = self._known.get(advert.worker)
        if standing is None:
            standing = self._known[advert.worker] = Standing(advert)
        before, used, struck = standing.advert, standing.used, standing.struck
        if before is None:
            self._listed.insert(self._place(standing), standing)
        # A new incarnation has lent nothing yet.
        if standing.incarnation not in ("", advert.incarnation):
            standing.slots.clear()
            standing.used = 0
        standing.advert, standing.incarnation = advert, advert.incarnation
        standing.ends = until = now + seconds
        if until < self._due:
            self._due = until
        for transfer in held:
            if now < standing.slots.get(transfer, now) < until:
                standing.slots[transfer] = until
        standing.struck = self._still_struck(advert, now)
        changed = before != advert
        for transfer in ended:
            if standing.slots.pop(transfer, now) > now:
                standing.used -= 1
                changed = True
        if changed or standing.used != used or standing.struck != struck:
            self._assess(standing)
        return changed

    def _still_struck(self, advert: Advert, now: float) -> bool:
        """Whether a new advert is doubted by an earlier strike, which then lives on; else it has ended."""
        strike = self._strikes.get(advert.worker, now)
        if strike is None:
            return False
        incarnation, proof = strike
        if advert.incarnation != incarnation or advert.proof > proof:
            self._strikes.drop(advert.worker)
            return False
        self._strikes.put(advert.worker, strike, now, SHARD_SECONDS)
        return True

    def struck(self, worker: str) -> bool:
        """Whether the advert of a worker is doubted."""
        return self._known[worker].struck

    def strike(self, worker: str, incarnation: str, proof: int, now: float) -> Advert | None:
        """Doubt an advert up to its proof; returns it if it was not doubted yet. Its slots stay as they are."""
        self._settle(now)
        standing = self._known.get(worker)
        if standing is None or standing.advert is None or standing.incarnation != incarnation:
            return None
        if standing.advert.proof > proof or standing.struck:
            return None
        self._strikes.put(worker, (incarnation, standing.advert.proof), now, SHARD_SECONDS)
        standing.struck = True
        self._assess(standing)
        return standing.advert

    def withdraw(self, worker: str, incarnation: str, now: float) -> bool:
        """End an advert unless it is of another incarnation; whether anything ended."""
        self._settle(now)
        standing = self._known.get(worker)
        if standing is None or standing.advert is None or standing.incarnation != incarnation:
            return False
        self._unlist(standing)
        standing.incarnation = ""
        self._forget(standing)
        return True

    def lend(self, standing: Standing, transfer: str, now: float, seconds: float) -> Advert:
        """Take a slot at a source that the survey of this moment has found; its advert with the slot in use."""
        slots = standing.slots
        if len(slots) > standing.used:
            slots = standing.slots = {name: ends for name, ends in slots.items() if ends > now}
        slots[transfer] = until = now + seconds
        standing.used = len(slots)
        self._due = min(self._due, until)
        self._assess(standing)
        return standing.told

    def release(self, worker: str, transfer: str, now: float) -> bool:
        """Give a slot back; whether there was one."""
        self._settle(now)
        standing = self._known.get(worker)
        if standing is None or transfer not in standing.slots:
            return False
        if standing.slots.pop(transfer) > now:
            standing.used -= 1
            self._assess(standing)
            self._forget(standing)
        return True

    def _settle(self, now: float) -> None:
        """End what has lapsed. Cheap while nothing has, and that is nearly always: renewed leases end late."""
        if now < self._due:
            return
        self._due = math.inf
        for standing in tuple(self._known.values()):
            if standing.advert is not None and standing.ends <= now:
                self._unlist(standing)
            alive = [ends for ends in standing.slots.values() if ends > now]
            if len(alive) != standing.used:
                standing.used = len(alive)
                self._assess(standing)
            self._forget(standing)
            self._due = min(self._due, *alive, math.inf if standing.advert is None else standing.ends)

    def _assess(self, standing: Standing) -> None:
        if standing.advert is not None:
            self._usable -= standing.usable
            standing.assess(standing.advert)
            self._usable += standing.usable

    def _unlist(self, standing: Standing) -> None:
        del self._listed[self._place(standing)]
        self._usable -= standing.usable
        standing.advert, standing.usable = None, False

    def _forget(self, standing: Standing) -> None:
        if standing.advert is None and not standing.used:
            del self._known[standing.worker]

    def _place(self, standing: Standing) -> int:
        return bisect_left(self._listed, standing.worker, key=_name)


def _survey(listed: Sequence[Standing], claim: Claim, *, first: bool = False) -> Survey:
    """Judge each advert for a claim, or those up to the first usable one."""
    excluded, layout, transports = {claim.worker, *claim.exclude}, claim.layout, claim.transports
    ours = frozenset(transports)
    best: list[Standing] = []
    best_rank = _WORST
    skipped: list[Skip] = []
    busy = False
    for standing in listed:
        refusal = standing.refusal
        if standing.worker in excluded:
            refusal = Skip(standing.worker, "excluded", standing.layout)
        elif standing.layout != layout:
            refusal = Skip(standing.worker, "layout", standing.layout)
        elif ours and standing.transports != transports and ours.isdisjoint(standing.transports):
            refusal = Skip(standing.worker, "transports", standing.layout)
        elif refusal is None:
            rank = standing.rank
            if rank == best_rank:
                best.append(standing)
            elif rank > best_rank:
                best, best_rank = [standing], rank
            if first:
                break
            continue
        elif refusal.reason == "busy":
            busy = True
        if len(skipped) < MAX_SKIPS:
            skipped.append(refusal)
    return Survey(best, tuple(skipped), busy)
