"""What must hold in a storm: while it goes on, and of what is left when it is over.

Decides what a violation is; it changes nothing. The promises are those of the README, and those
that follow from them for whoever comes after the trouble. ``storm.py`` asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coldstart.effects import Pull
from coldstart.events import ChunkCorrupted
from coldstart.phases.states import Abandoning, Failed, Gone, Serving, State, Transferring
from coldstart.plan import GRACE
from coldstart.runner import Entry
from coldstart.source import Mode, Source
from coldstart.testing.chaos.line import DEADLINE
from coldstart.testing.chaos.outcome import Violation
from coldstart.testing.chaos.subject import Subject
from coldstart.testing.harness import SHARD, STORAGE_SECONDS

if TYPE_CHECKING:
    from coldstart.testing.chaos.storm import World

WRONG = "never serve wrong weights"
HANG = "never hang"
WORSE = "never worse than storage"
DISTURB = "never disturb the source"
LATE = "never write late"
TELL = "always say what happened"
RECOVER = "no lasting harm"
ONCE = "one storage read"
BROKE = "no part breaks"

CALLS = 4
"""Calls to the store, each up to its deadline, that may stand before or after the bytes of a start."""


class Promises:
    """The violations of one storm, and what is counted on the way."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.violations: list[Violation] = []
        self.paths: Counter[str] = Counter()

    def broken(self, promise: str, worker: str, what: str) -> None:
        """Note a violation."""
        self.violations.append(Violation(promise, self.world.now, worker, what))

    def _broken(self, promise: str, subject: Subject, what: str) -> None:
        self.broken(promise, subject.member.inbox, what)

    # -------------------------------------------------------------------------- while it goes on

    def joined(self, subject: Subject, entry: Entry[State]) -> None:
        """A step of a joiner."""
        match entry.event, entry.before:
            case ChunkCorrupted(), Transferring(source=source) | Abandoning(source=source):
                subject.wronged.add(source.inbox)
            case _:
                pass
        for effect in entry.effects:
            if isinstance(effect, Pull) and effect.source.inbox in subject.wronged:
                self._broken(WRONG, subject, f"asks {effect.source.inbox} again, which gave it wrong bytes")
        if type(entry.before) is type(entry.after):
            return
        match entry.after:
            case Serving():
                self._served(subject, entry.after)
            case Failed(reason=reason):
                self.paths["failed"] += 1
                if not subject.broken:
                    self._broken(WORSE, subject, f"failed although nothing was broken: {reason}")
                self._bounded(subject, entry.after)
            case Gone():
                self.paths["left"] += 1
            case _:
                pass

    def lent(self, subject: Subject, entry: Entry[Source]) -> None:
        """A step of a source."""
        state = entry.after
        if sum(not grant.closing for grant in state.grants) > state.terms.slots:
            self._broken(DISTURB, subject, f"{len(state.grants)} grants for {state.terms.slots} slots")

    def _served(self, subject: Subject, state: State) -> None:
        report = subject.member.report
        self.paths[report.path] += 1
        if not state.journey.complete or not report.verified:
            self._broken(WRONG, subject, f"serves with {len(state.journey.verified)} chunks verified")
        if not subject.right:
            self._broken(WRONG, subject, "serves wrong bytes")
        self._bounded(subject, state)
        self._told(subject, state)

    def _bounded(self, subject: Subject, state: State) -> None:
        """The start took no longer than storage, the budget, and what somebody else is to answer for."""
        limits, journey = state.journey.limits, state.journey
        took, storage = self.world.now - subject.began, subject.storage.seconds
        if subject.broken:
            storage = 2 * storage + (limits.storage_stall if journey.partial else limits.whole_load) + limits.quiet
        excused = limits.sources * limits.quiet if subject.late else 0.0
        if not journey.partial:  # what peers gave is read again, and the machine credits them for it all the same
            excused += STORAGE_SECONDS
        bound = storage + limits.patience + GRACE + journey.followed + CALLS * DEADLINE + excused
        if took > bound:
            self._broken(WORSE, subject, f"took {took:.2f} s, {bound:.2f} s at most: {'; '.join(journey.detours)}")

    def _told(self, subject: Subject, state: State) -> None:
        """Whoever was left is named, with the reason; every attempt says how it ended."""
        for worker in state.journey.excluded:
            if not any(reason.startswith(f"{worker}: ") for reason in subject.member.report.detours):
                self._broken(TELL, subject, f"left {worker} without a reason")
        for attempt in subject.member.report.attempts:
            if attempt.outcome in ("", "ended"):
                self._broken(TELL, subject, f"attempt {attempt.number} at {attempt.source} has no outcome")

    # --------------------------------------------------------------------------- when it is over

    def settled(self) -> None:
        """All faults are over and everybody has had time: what is left of them?"""
        adverts = {advert.inbox: advert for advert in self.world.workers.store.ledger.adverts(SHARD.key)}
        for subject in self.world.living:
            if subject.starts:
                self._broken(HANG, subject, f"still in {type(subject.member.joiner.state).__name__}")
            if subject.member.source.state.grants:
                self._broken(RECOVER, subject, f"grants are open: {subject.member.source.state.grants}")
            if subject.switched.offered:
                self._broken(RECOVER, subject, f"memory is open to {sorted(subject.switched.offered)}")
            if subject.changed and not subject.right and subject.lends:
                self._broken(WRONG, subject, "lends weights that its host has changed")
            if subject.member.memory.lent and not subject.late:
                self._broken(LATE, subject, f"{subject.member.memory.lent} spans of its memory are still held")
            if subject.serves and not subject.spoilt and not subject.right:
                self._broken(LATE, subject, "its memory changed while it served")
            advert = adverts.pop(subject.member.inbox, None)
            if advert is not None and advert.used:
                self._broken(RECOVER, subject, f"{advert.used} slots are taken")
            if subject.sound and isinstance(subject.member.joiner.state, Serving) and subject.line is not None:
                self._recovered(subject, advert is not None, advert is not None and advert.struck)
        for inbox in adverts:
            self.broken(RECOVER, inbox, "is dead and advertised")

    def _recovered(self, subject: Subject, advertised: bool, struck: bool) -> None:
        if subject.member.source.state.mode is not Mode.OPEN:
            self._broken(RECOVER, subject, f"sound, but {subject.member.source.state.mode}")
        elif not advertised:
            self._broken(RECOVER, subject, "sound, but not advertised")
        elif struck:
            self._broken(RECOVER, subject, "sound, but struck for good")

    def received(self, newcomer: Subject, lenders: Sequence[Subject]) -> None:
        """A worker that came after all faults gets its weights from whoever lends, without a wasted attempt."""
        state = newcomer.member.joiner.state
        if not isinstance(state, Serving):
            self._broken(RECOVER, newcomer, f"came after all faults and is {type(state).__name__}")
        spoilt = {subject.name for subject in lenders if subject.spoilt}
        wrong = {reason.partition(":")[0] for reason in state.journey.detours}
        if wrong - spoilt:
            self._broken(RECOVER, newcomer, f"no use: {'; '.join(state.journey.detours)}")
        sound = [subject for subject in lenders if not subject.spoilt]
        if sound and len(wrong) < state.journey.limits.sources and newcomer.member.report.path != "peer":
            self._broken(RECOVER, newcomer, f"from {newcomer.member.report.path}, with {len(sound)} sources")

    def undisturbed(self) -> None:
        """Nothing was wrong: storage was read once, and nobody was ever sent in vain."""
        reads = self.world.workers.storage_reads
        if reads != 1:
            self.broken(ONCE, "*", f"storage was read {reads} times")
        for subject in self.world.living:
            if subject.member.report.detours:
                self._broken(ONCE, subject, f"went astray: {'; '.join(subject.member.report.detours)}")

    def left(self) -> None:
        """Everybody was asked to leave: nobody is there, and the store knows."""
        for advert in self.world.workers.store.ledger.adverts(SHARD.key):
            self.broken(RECOVER, advert.inbox, "has left and is advertised")
        for subject in self.world.living:
            if not isinstance(subject.member.joiner.state, Gone | Failed):
                self._broken(HANG, subject, f"was drained and is {type(subject.member.joiner.state).__name__}")
            if subject.switched.offered:
                self._broken(RECOVER, subject, f"has left with {sorted(subject.switched.offered)} open")
