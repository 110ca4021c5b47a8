"""One operation's dealings with slots: who gets one, those in line first.

Decides the order in which a source with room is given away, by the rules of ``scripts/choice.py`` and
``scripts/line.py``. It must not know why a source has room, nor who leads where there is none: that is
``ledger.py``, which makes a turn for each operation that may grant something.
"""

from __future__ import annotations

from collections.abc import Callable

from coldstart.bus.choice import Seeker, Standing
from coldstart.bus.limits import INBOX_SECONDS, LOOKS, MAX_GRANTS
from coldstart.bus.shard import Shard
from coldstart.ports import Claim, Granted, Letter, Skip


class Turn:
    """What one operation may grant, at one moment.

    Args:
        now: in seconds.
        deliver: puts a letter into an inbox.
    """

    def __init__(self, shard: Shard, epoch: str, now: float, deliver: Callable[[str, Letter], None]) -> None:
        self._shard, self._epoch, self._now, self._deliver = shard, epoch, now, deliver
        self._looks, self._grants = LOOKS, MAX_GRANTS
        self.skipped: tuple[Skip, ...] = ()
        """Those that the last :meth:`seek` has passed over."""
        self.busy = False
        """Whether one of them might do in a moment."""

    def seek(self, claim: Claim) -> Granted | None:
        """A slot for ``claim``, from a source that none of those ahead of it can use."""
        shard, seeker = self._shard, Seeker(claim)
        place = shard.lines.place(claim.transfer, claim.layout, self._now)
        waited = self._now - place.since if place is not None else 0.0
        while self._grants:
            survey = shard.roster.survey(seeker, waited, self._now)
            self.skipped, self.busy = survey.skipped, survey.busy
            if not survey.best:
                return None
            chosen = survey.best[claim.luck % len(survey.best)]
            if not self.serve(chosen, before=claim.transfer):
                return self._grant(claim, chosen, survey.skipped)
        self.busy = True
        return None

    def serve(self, source: Standing, before: str = "") -> bool:
        """Grant ``source`` to those in line whom it suits, those before ``before`` only; whether to anybody."""
        shard, served = self._shard, False
        if not source.usable or source.layout in shard.conflicts:
            return False
        for place in shard.lines.ahead(source.layout, before, self._now):
            if not (source.usable and self._grants and self._looks):
                break
            self._looks -= 1
            claim = place.seeker.claim
            if place.seeker.refusal(source, self._now - place.since) is None:
                self._grants -= 1
                served = True
                granted = self._grant(claim, source)
                if claim.inbox:
                    self._deliver(claim.inbox, Letter(b"", transfer=claim.transfer, granted=granted))
        return served

    def _grant(self, claim: Claim, source: Standing, skipped: tuple[Skip, ...] = ()) -> Granted:
        shard, now = self._shard, self._now
        told = shard.roster.lend(source, claim.transfer, now, claim.slot_seconds)
        shard.fence += 1
        granted = Granted(told, shard.fence, shard.root(claim.layout), self._epoch, skipped)
        shard.answers.put(claim.transfer, granted, now, claim.slot_seconds)
        shard.lent.put(claim.transfer, (told.worker, told.inbox), now, INBOX_SECONDS)
        shard.lines.leave(claim.transfer)
        self._deliver(told.inbox, Letter(claim.hello, shard.fence))
        return granted
