"""Why a path was left, a joiner refused, or weights withheld, as one of a few words that may label a metric.

Decides the class of a reason from what happened, never from its text: that names workers, chunks and errors, and
would make a new series each time. Pure; ``metrics.py`` counts what is classified here.
"""

from __future__ import annotations

from enum import StrEnum

from coldstart import events
from coldstart.effects import SendRefusal
from coldstart.events import Event, Timer
from coldstart.phases.states import (
    Abandoning,
    Agreeing,
    Discovering,
    Handshaking,
    Loading,
    Replacing,
    State,
    Transferring,
    Waiting,
)
from coldstart.runner import Entry


class Cause(StrEnum):
    """Why a source, or the way over peers, was left."""

    STORE = "store"
    """Coordination is down, too slow, or switched off."""
    BUSY = "busy"
    """Every source stayed busy for as long as there was patience."""
    LOADER = "loader"
    """Whoever reads storage for everybody took too long."""
    REFUSED = "refused"
    SILENT = "silent"
    """The source did not answer, or could not be connected to in time."""
    TRANSPORT = "transport"
    """The transport failed, or its connection, or there is none that moves memory of this device."""
    STALLED = "stalled"
    """Nothing came any more, or too little until patience was spent."""
    SLOW = "slow"
    REVOKED = "revoked"
    """The source took its offer back: it drains, or its weights change."""
    DIGEST = "digest"
    """Wrong bytes."""
    TRUTH = "truth"
    """The digests to verify against could not be had."""
    CHANGED = "changed"
    """The source's weights were others after the transfer."""
    MEMORY = "memory"
    """Somebody may still have written into the target."""
    ESTIMATE = "estimate"
    """Storage was expected to be quicker: by choice, not by failure."""
    GROUP = "group"
    """Another rank of the group made it necessary."""
    OTHER = "other"


class Denial(StrEnum):
    """Why a source gives a joiner nothing, or no more."""

    BUSY = "busy"
    LAYOUT = "layout"
    TRANSPORT = "transport"
    """No transport in common, or one that could not offer."""
    CLOSED = "closed"
    """It does not lend: nothing is verified yet, weights are withheld, or it drains."""
    WITHHELD = "withheld"
    """Its weights are not what they were; whoever read them is told."""
    LEFT = "left"
    """It has left its own half-filled memory."""
    DRAINED = "drained"
    """The time to end what was in flight is over."""


class Withholding(StrEnum):
    """Why weights that serve are not lent."""

    CHANGING = "changing"
    """The host has said so."""
    DAMAGED = "damaged"
    MOVED = "moved"


_OBJECTIONS = {"busy": Denial.BUSY, "layout": Denial.LAYOUT, "no common transport": Denial.TRANSPORT}
"""What ``modes/moves.py`` objects to a hello; else it says the mode that it is in."""


class Causes:
    """Follows one joiner: a pull that is given up goes on until it is quiet, and its reason is that of giving it up."""

    def __init__(self) -> None:
        self._abandoned = self._left = Cause.OTHER
        self._further: dict[int, Cause] = {}
        """Of each further source that is being left, by attempt."""

    def of(self, entry: Entry[State]) -> Cause:
        """The class of whatever this step has left; to be asked of every step.

        Who is elected to read storage because it has left everybody who has the weights has the last reason for that.
        """
        found = self._left if isinstance(entry.event, events.LoaderElected) else self._found(entry)
        if len(entry.after.journey.detours) > len(entry.before.journey.detours):
            self._left = found
        return found

    def _found(self, entry: Entry[State]) -> Cause:
        before, after = entry.before, entry.after
        if isinstance(before, Abandoning | Replacing) and not isinstance(entry.event, events.DrainRequested):
            found = self._abandoned
        elif isinstance(entry.event, events.AttemptEvent) and entry.event.attempt in self._further:
            found = self._further[entry.event.attempt]
        else:
            found = _cause(before, entry.event)
        if isinstance(after, Abandoning | Replacing) and type(after) is not type(before):
            self._abandoned = found
        self._further = {attempt: self._further.get(attempt, found) for attempt in _ending(after)}
        return found


def fell_back(entry: Entry[State]) -> bool:
    """Whether this step took the way to storage that peers were to spare it.

    Who is elected to read storage for everybody has only fallen back if it had left somebody before.
    """
    after, loaded = entry.after, isinstance(entry.event, events.Started) and entry.event.loaded
    if not isinstance(after, Loading) or isinstance(entry.before, Loading) or loaded:
        return False
    return not after.leading or bool(after.journey.detours)


def denial(event: Event, refusal: SendRefusal) -> Denial:
    """The class of what a joiner is told after ``event``."""
    match event:
        case events.HelloReceived():
            return _OBJECTIONS.get(refusal.reason, Denial.CLOSED)
        case events.OfferFailed():
            return Denial.TRANSPORT
        case events.SharingEnded():
            return Denial.LEFT
        case events.Expired():
            return Denial.DRAINED
        case _:
            return Denial.WITHHELD


def withholding(event: Event) -> Withholding:
    """The class of why weights are withheld from ``event`` on."""
    match event:
        case events.WeightsChanged():
            return Withholding.CHANGING
        case events.WeightsMoved():
            return Withholding.MOVED
        case _:
            return Withholding.DAMAGED


def _cause(before: State, event: Event) -> Cause:
    match event:
        case events.ClaimFailed():
            without = isinstance(before, Discovering | Waiting) and not before.journey.transports
            return Cause.TRANSPORT if without else Cause.STORE
        case events.OfferRefused():
            return Cause.REFUSED if isinstance(before, Handshaking | Agreeing) else Cause.REVOKED
        case events.PullEnded() if not event.quiet:
            return Cause.MEMORY
        case events.ConnectFailed() | events.PullEnded():
            return Cause.TRANSPORT
        case events.ChunkCorrupted():
            return Cause.DIGEST
        case events.BytesLanded() | events.SourceProgressed() | events.ChunkVerified():
            return Cause.SLOW
        case events.TruthMissed() | events.TruthUnpublished() | events.TruthConflicted() | events.TruthDisputed():
            return Cause.TRUTH
        case events.SourceChanged():
            return Cause.CHANGED
        case events.StorageOpened() | events.ClaimDeferred() | events.SourceClaimed():
            return Cause.ESTIMATE
        case events.GroupEvent():
            return Cause.GROUP
        case events.Expired(timer=timer):
            return _too_late(before, timer)
        case _:
            return Cause.OTHER


def _too_late(before: State, timer: Timer) -> Cause:
    match timer:
        case Timer.PATIENCE if isinstance(before, Discovering):
            return Cause.STORE
        case Timer.PATIENCE if isinstance(before, Waiting):
            return Cause.BUSY
        case Timer.PATIENCE | Timer.ANSWER:
            return Cause.SILENT
        case Timer.RETRY:
            return Cause.LOADER
        case Timer.STALL:
            return Cause.STALLED
        case Timer.QUIET:
            return Cause.MEMORY
        case Timer.GROUP:
            return Cause.GROUP
        case _:
            return Cause.OTHER


def _ending(state: State) -> tuple[int, ...]:
    """The attempts at further sources that are being given up."""
    further = state.further if isinstance(state, Transferring) else ()
    return tuple([each.attempt for each in further if each.ending])
