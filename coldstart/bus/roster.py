"""The adverts of one shard, slots and strikes included: who may be a joiner's source at this moment.

Decides when adverts, slots and strikes begin and lapse, and which adverts a claim looks at; what one
is worth to it is in ``choice.py``. It must not know letters, truths or leaders, nor a clock: each call
says what time it is. ``ledger.py`` joins it with the rest of the store.

Lapses are found by one look at the earliest end. Everything is in the order of the workers' names:
the same calls give the same answers in every process.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter

from coldstart.bus.choice import Seeker, Standing, Survey, Wait
from coldstart.bus.leases import Leases
from coldstart.bus.limits import MAX_PREFERRED, SCAN, SHARD_SECONDS
from coldstart.ports import Advert

_name = attrgetter("worker")


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

    def find(self, worker: str, now: float) -> Standing | None:
        """A worker whose advert is alive."""
        self._settle(now)
        standing = self._known.get(worker)
        return None if standing is None or standing.advert is None else standing

    def survey(self, seeker: Seeker, wait: Wait, now: float) -> Survey:
        """Look for a source: at those preferred, then at :data:`SCAN` adverts, then at more while none will do."""
        self._settle(now)
        claim, listed = seeker.claim, self._listed
        if claim.prefer and (survey := self._preferred(seeker, wait)).best:
            return survey
        if len(listed) <= SCAN:
            return seeker.survey(listed, wait)
        start = claim.luck % len(listed)
        survey = seeker.survey(listed[start : start + SCAN] + listed[: max(start + SCAN - len(listed), 0)], wait)
        # Who stands in line is served when a source that was not looked at renews its advert. The reasons are
        # full by now, so for others too more looking finds nothing new if nobody has a free slot for anybody.
        if survey.best or (survey.busy and (claim.queue_seconds > 0 or not self._usable)):
            return survey
        return seeker.survey(listed[start:] + listed[:start], wait, first=True)

    def _preferred(self, seeker: Seeker, wait: Wait) -> Survey:
        known = (self._known.get(worker) for worker in seeker.claim.prefer[:MAX_PREFERRED])
        return seeker.survey((found for found in known if found is not None and found.advert), wait, first=True)

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
            standing.forget_slots()
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
            changed = standing.end(transfer, now) or changed
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

    def lend(self, standing: Standing, transfer: str, now: float, seconds: float, *, of_part: bool) -> Advert:
        """Take a slot at a source that the survey of this moment has found; its advert with the slot in use."""
        until = now + seconds
        standing.lend(transfer, until, now, of_part=of_part)
        self._due = min(self._due, until)
        self._assess(standing)
        return standing.told

    def release(self, worker: str, transfer: str, now: float) -> bool:
        """Give a slot back; whether there was one."""
        self._settle(now)
        standing = self._known.get(worker)
        if standing is None or transfer not in standing.slots:
            return False
        if standing.end(transfer, now):
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
            if standing.lapse(now):
                self._assess(standing)
            self._forget(standing)
            alive = [ends for ends in standing.slots.values() if ends > now]
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
