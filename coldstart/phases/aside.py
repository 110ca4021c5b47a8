"""TRANSFER from further sources beside the first one: of the other part in a crowd, of anything outside of it.

Decides how a further source is sought, agreed with, read and left, while the first one goes on in
``transfer.py``. Nothing here leads out of TRANSFER, but for a pull that does not become quiet: a further
source that is no use costs nothing but its portion, which the others bring. When one is sought outside of crowds is in
``widen.py``, which of them is too slow at the end in ``endgame.py``.
"""

from __future__ import annotations

from msgspec.structs import replace

from coldstart import events
from coldstart.effects import Abandon, Arm, Disarm, Effect, Pull, ShowLife, Strike
from coldstart.events import AttemptEvent, Timer
from coldstart.phases import moves
from coldstart.phases.states import Further, Transferring, further_at
from coldstart.portions import NARROW, OUTRUN, Brought

Aside = tuple[Transferring, tuple[Effect, ...]]


def step(state: Transferring, other: Further, event: AttemptEvent, at: float) -> Aside:
    """What has become of one of the further sources; its own attempt's events only."""
    match event:
        case events.SourceClaimed() if other.source is None:
            return _claimed(state, other, event)
        case events.ClaimDeferred() if other.source is None and state.alone:
            return _settled(state.without(other)), moves.give_back(other, "nobody is free")
        case events.ClaimDeferred() if other.source is None:
            return state, (Arm(Timer.RETRY, state.journey.limits.retry, str(other.attempt)),)
        case events.ClaimFailed() | events.LoaderElected() | events.TruthDisputed() if other.source is None:
            return _settled(state.without(other)), ()
        case events.OfferReceived():
            return _agreed(state, other, event, at)
        case events.SourceProgressed(have=have):
            if other.have is None or other.ending:
                return state, ()
            state = state.with_further(replace(other, have=have))
            state, effects = pull_more(state, other.attempt)
            if other.pulling or not other.offered:
                return state, effects
            return state, (*effects, _watch(state, other), *moves.share(state.journey, state.journey.verified))
        case events.OfferRefused(reason=reason):
            return leave(state, other, f"refused ({reason})")
        case events.BytesLanded(nbytes=nbytes):
            pace = state.pace.landing(nbytes, state.journey.limits.floor, at)
            brought = None if other.brought is None else other.brought.more(nbytes, at)
            state = replace(state, pace=pace).with_further(replace(other, brought=brought))
            shared = moves.share(state.journey, state.journey.verified)
            return state, shared if other.ending else (_watch(state, other), *shared)
        case events.ChunkVerified(chunk=chunk):
            assert other.source is not None
            journey = state.journey.with_chunk(chunk, other.source.worker)
            state, effects = pull_more(replace(state, journey=journey), other.attempt)
            return state, (*effects, *moves.share(journey, journey.verified))
        case events.ChunkCorrupted(chunk=chunk):
            assert other.source is not None
            state, effects = leave(state, other, f"chunk {chunk} has wrong bytes")
            return state, (*effects, Strike(other.attempt, other.source, chunk))
        case events.PullEnded():
            return _ended(state, other, event)
        case _:
            return state, ()


def _claimed(state: Transferring, other: Further, event: events.SourceClaimed) -> Aside:
    """A slot is ours. Of several that are wanted, the next one is sought now: it must be another one."""
    other = replace(other, source=event.source)
    state = state.with_further(other)
    if event.source.unproven:
        return leave(state, other, f"refused ({event.source.unproven})")
    if event.root and state.journey.root and event.root != state.journey.root:
        return leave(state, other, "another truth")
    timed = (
        Disarm(Timer.RETRY, str(other.attempt)),
        Arm(Timer.ANSWER, state.journey.limits.answer, str(other.attempt)),
    )
    if not state.alone or 1 + len(state.further) >= state.wanted:
        return state, timed
    state, effects = moves.seek_further(state)
    return state, (*timed, *effects)


def _settled(state: Transferring) -> Transferring:
    """No more are sought for now. Outside of a crowd one that is left alone gives everything, as before."""
    if state.further or not state.alone:
        return replace(state, wanted=1 + len(state.further))
    return replace(state, wanted=1, part=-1, alone=0.0)


def _agreed(state: Transferring, other: Further, offer: events.OfferReceived, at: float) -> Aside:
    if other.source is None or other.offered:
        return state, ()
    state = replace(state, since=at, mark=state.pace.landed).with_further(
        replace(
            other,
            offered=True,
            transport=offer.transport,
            ticket=offer.ticket,
            have=offer.have,
            brought=Brought.begun(at),
        )
    )
    state, effects = pull_more(state, other.attempt)
    return state, (
        Disarm(Timer.ANSWER, str(other.attempt)),
        ShowLife(other.attempt, other.source, offer.number),
        *effects,
        _watch(state, other),
    )


def expired(state: Transferring, other: Further, timer: Timer) -> Aside:
    """One of its clocks; that of quiet is not looked at here."""
    match timer:
        case Timer.RETRY:
            again = Arm(Timer.RETRY, state.journey.limits.retry, str(other.attempt))
            return state, (moves.claim_part(state, other), again)
        case Timer.ANSWER:
            return leave(state, other, "no answer")
        case Timer.STALL if other.pulling or state.unasked:
            return leave(state, other, "stalled")
        case _:
            return state, ()


def pull_more(state: Transferring, attempt: int) -> Aside:
    """Fetch what this further source has by now, as :func:`moves.pull_more` does from the first."""
    other = further_at(state, attempt)
    if other is None or other.source is None or not other.offered or other.ending:
        return state, ()
    if not moves.may_pull(state.journey, other):
        return state, ()
    wanted = moves.portion_of(state, state.offered_by(other), other.pulling)
    if not wanted:
        return state, ()
    pull = Pull(other.attempt, other.source, other.transport, other.ticket, wanted)
    return state.with_further(replace(other, pulling=other.pulling | wanted)), (pull,)


def take_over(state: Transferring, attempt: int) -> Aside:
    """Have the others fetch, too, what nobody is to bring any more since something has come of ``attempt``."""
    effects: tuple[Effect, ...] = ()
    for other in state.further:
        if other.attempt != attempt:
            state, more = pull_more(state, other.attempt)
            effects = (*effects, *more, _watch(state, other)) if more else effects
    return state, effects


def leave(state: Transferring, other: Further, reason: str) -> Aside:
    """A further source is no use: end its pull; go on when that is quiet, at once where there is none."""
    if other.pulling:
        subject = str(other.attempt)
        return state.with_further(replace(other, ending=other.ending or reason)), (
            Abandon(other.attempt),
            Disarm(Timer.STALL, subject),
            Arm(Timer.QUIET, state.journey.limits.quiet, subject),
        )
    return _left(state, other, reason)


def _ended(state: Transferring, other: Further, event: events.PullEnded) -> Aside:
    under_way = event.left_of(other.pulling)
    left_out = (other.pulling - under_way) & state.journey.missing
    other = replace(other, pulling=under_way)
    state = state.with_further(other)
    if other.ending:
        return (state, ()) if under_way else _left(state, other, other.ending)
    if event.reason or (left_out and (state.journey.root or other.have is None)):
        return leave(state, other, event.reason or "ended early")
    if left_out:  # of unknown digest: when it tells of more
        return state, (_watch(state, other),)
    state, effects = pull_more(state, other.attempt)
    return state, (*effects, _watch(state, other))


def _left(state: Transferring, other: Further, reason: str) -> Aside:
    """Its part is sought elsewhere, as long as there is somebody to try; the others may give it, too.

    What a quicker one is to bring instead is sought nowhere else.
    """
    journey, released = state.journey, moves.give_back(other, reason)
    state = replace(state.without(other), since=state.pace.seen, mark=state.pace.landed)
    if reason == NARROW:
        journey = replace(moves.detour(journey, NARROW), narrow=True)
        return _settled(replace(state, journey=journey)), released
    if other.source is not None:
        journey = moves.leaving(replace(journey, tries=journey.tries + 1), other.source, reason)
    state = replace(state, journey=journey)
    if other.source is None or reason == OUTRUN or journey.tries >= journey.limits.sources:
        return _settled(state), released
    state, effects = moves.seek_further(state)
    return state, (*released, *effects)


def _watch(state: Transferring, other: Further) -> Arm:
    """Its stall clock; patience is the first source's matter."""
    now = further_at(state, other.attempt) or other
    stall = state.journey.limits.stall * (1.0 if now.pulling else moves.WAITING)
    return Arm(Timer.STALL, stall, str(other.attempt))
