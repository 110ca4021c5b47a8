"""One operation's dealings with slots: who gets one, those in line first.

Decides the order in which a source with room is given away, by the rules of ``scripts/choice.py`` and
``scripts/line.py``. It must not know why a source has room, nor who leads where there is none: that is
``ledger.py``, which makes a turn for each operation that may grant something.
"""

from __future__ import annotations

from collections.abc import Callable

from coldstart.bus.choice import PATIENT, Seeker, Sources, Standing, Wait
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
        self.lacking = False
        """Whether one of them might do once it has a chunk of the part that is wanted."""
        self.sources: Sources | None = None
        """Those of them that are complete and only taken."""

    def seek(self, claim: Claim) -> Granted | None:
        """A slot for ``claim``, from a source that none of those ahead of it can use."""
        shard, seeker = self._shard, Seeker(claim)
        while self._grants:
            wait = shard.lines.wait(claim, self._now)
            survey = shard.roster.survey(seeker, wait, self._now)
            self.skipped, self.busy, self.lacking = survey.skipped, survey.busy, survey.lacking
            self.sources = survey.taken
            if not survey.best:
                return None
            chosen = survey.best[claim.luck % len(survey.best)]
            if not self.serve(chosen, before=claim.transfer):
                return self._grant(claim, chosen, wait, survey.skipped)
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
            seeker, claim = place.seeker, place.seeker.claim
            # Most of a long line is passed over for what does not change, and what does costs more to find out.
            if seeker.refusal(source, PATIENT) is not None:
                continue
            wait = shard.lines.wait(claim, self._now)
            if seeker.refusal(source, wait) is None:
                self._grants -= 1
                served = True
                granted = self._grant(claim, source, wait)
                if claim.inbox:
                    self._deliver(claim.inbox, Letter(b"", transfer=claim.transfer, granted=granted))
        return served

    def _grant(self, claim: Claim, source: Standing, wait: Wait, skipped: tuple[Skip, ...] = ()) -> Granted:
        shard, now = self._shard, self._now
        part = wait.part
        told = shard.roster.lend(source, claim.transfer, now, claim.slot_seconds, of_part=part >= 0)
        shard.fence += 1
        granted = Granted(told, shard.fence, shard.root(claim.layout), self._epoch, skipped, part)
        shard.lines.taken(claim, now, of_part=part >= 0)
        shard.answers.put(claim.transfer, granted, now, claim.slot_seconds)
        shard.lent.put(claim.transfer, (told.worker, told.inbox), now, INBOX_SECONDS)
        shard.lines.leave(claim.transfer)
        self._deliver(told.inbox, Letter(claim.hello, shard.fence))
        return granted
