"""TRANSFER from a second source: in a crowd, where each gives a part of the stream.

Decides how a second source is sought, agreed with, read and left, while the first one goes on in
``transfer.py``. Nothing here leads out of TRANSFER, but for a pull that does not become quiet: a second
source that is no use costs nothing but its part, which the next one brings, or the first.
"""

from __future__ import annotations

from msgspec.structs import replace

from coldstart import events, portions
from coldstart.effects import Abandon, Arm, Disarm, Effect, Pull, ShowLife, Strike
from coldstart.events import AttemptEvent, Timer
from coldstart.phases import moves
from coldstart.phases.states import Second, Transferring
from coldstart.plan import Chunks
from coldstart.portions import NARROW, OUTRUN, Brought

Aside = tuple[Transferring, tuple[Effect, ...]]


def step(state: Transferring, second: Second, event: AttemptEvent, at: float) -> Aside:
    """What has become of the second source; its own attempt's events only."""
    match event:
        case events.SourceClaimed(source=source, root=root) if second.source is None:
            if source.unproven:
                return leave(replace(state, second=replace(second, source=source)), f"refused ({source.unproven})")
            if root and state.journey.root and root != state.journey.root:
                return leave(replace(state, second=replace(second, source=source)), "another truth")
            return _with(state, second, source=source), (
                Disarm(Timer.RETRY, str(second.attempt)),
                Arm(Timer.ANSWER, state.journey.limits.answer, str(second.attempt)),
            )
        case events.ClaimDeferred() if second.source is None and state.alone:
            return _alone_again(state), moves.end_second(second, "nobody is free")
        case events.ClaimDeferred() if second.source is None:
            return state, (Arm(Timer.RETRY, state.journey.limits.retry, str(second.attempt)),)
        case events.ClaimFailed() | events.LoaderElected() | events.TruthDisputed() if second.source is None:
            return _alone_again(state), ()
        case events.OfferReceived():
            return _agreed(state, second, event, at)
        case events.SourceProgressed(have=have):
            if second.have is None or second.ending:
                return state, ()
            state = _with(state, second, have=have)
            if second.pulling or not second.offered:
                return pull_more(state)
            state, effects = pull_more(state)
            return state, (*effects, _watch(state), *moves.share(state.journey, state.journey.verified))
        case events.OfferRefused(reason=reason):
            return leave(state, f"refused ({reason})")
        case events.BytesLanded(nbytes=nbytes):
            pace = state.pace.landing(nbytes, state.journey.limits.floor, at)
            brought = None if second.brought is None else second.brought.more(nbytes, at)
            state = _with(replace(state, pace=pace), second, brought=brought)
            shared = moves.share(state.journey, state.journey.verified)
            return state, shared if second.ending else (_watch(state), *shared)
        case events.ChunkVerified(chunk=chunk):
            assert second.source is not None
            journey = state.journey.with_chunk(chunk, second.source.worker)
            state, effects = pull_more(replace(state, journey=journey))
            return state, (*effects, *moves.share(journey, journey.verified))
        case events.ChunkCorrupted(chunk=chunk):
            assert second.source is not None
            state, effects = leave(state, f"chunk {chunk} has wrong bytes")
            return state, (*effects, Strike(second.attempt, second.source, chunk))
        case events.PullEnded():
            return _ended(state, second, event)
        case _:
            return state, ()


def _agreed(state: Transferring, second: Second, offer: events.OfferReceived, at: float) -> Aside:
    if second.source is None or second.offered:
        return state, ()
    state = replace(
        state,
        second=replace(
            second,
            offered=True,
            transport=offer.transport,
            ticket=offer.ticket,
            have=offer.have,
            brought=Brought.begun(at),
            mark=state.pace.landed,
        ),
    )
    state, effects = pull_more(state)
    return state, (
        Disarm(Timer.ANSWER, str(second.attempt)),
        ShowLife(second.attempt, second.source, offer.number),
        *effects,
        _watch(state),
    )


def expired(state: Transferring, second: Second, timer: Timer) -> Aside:
    """One of its clocks; that of quiet is not looked at here."""
    match timer:
        case Timer.RETRY:
            again = Arm(Timer.RETRY, state.journey.limits.retry, str(second.attempt))
            return state, (moves.claim_part(state, second), again)
        case Timer.ANSWER:
            return leave(state, "no answer")
        case Timer.STALL if second.pulling or state.unasked:
            return leave(state, "stalled")
        case _:
            return state, ()


def pull_more(state: Transferring) -> Aside:
    """Fetch what the second source has by now, as :func:`moves.pull_more` does from the first."""
    second = state.second
    if second is None or second.source is None or not second.offered or second.ending:
        return state, ()
    if not moves.may_pull(state.journey, second):
        return state, ()
    wanted = moves.portion_of(state, state.offered_by(second), second.pulling)
    if not wanted:
        return state, ()
    pull = Pull(second.attempt, second.source, second.transport, second.ticket, wanted)
    return _with(state, second, pulling=second.pulling | wanted), (pull,)


def outrun(state: Transferring, at: float) -> Aside:
    """In the end game: give the second source up where the first one, which has nothing to do, is much quicker."""
    second = state.second
    if second is None or second.ending or not state.idle or second.transport not in state.journey.abortable:
        return state, ()
    behind = 0.0 if second.brought is None else second.brought.rate(at)
    if not portions.outrun(_owed(state, second.pulling), behind, state.brought.rate_while_it_came):
        return state, ()
    return leave(state, OUTRUN)


def outruns(state: Transferring, at: float) -> bool:
    """The other way round: whether the second source, which has nothing to do, makes the first one not worth waiting
    for. A joiner that has no more tries, or whose group has agreed on a source, waits for it nevertheless."""
    second, journey = state.second, state.journey
    if second is None or second.brought is None or second.pulling or state.unasked:
        return False
    if journey.accord is not None or journey.tries >= journey.limits.sources or second.ending:
        return False
    if state.transport not in journey.abortable:
        return False
    return portions.outrun(_owed(state, state.pulling), state.brought.rate(at), second.brought.rate_while_it_came)


def _owed(state: Transferring, pulling: Chunks) -> int:
    return len(pulling & state.journey.missing) * state.journey.chunk_bytes


def leave(state: Transferring, reason: str) -> Aside:
    """The second source is no use: end its pull; go on when that is quiet, at once where there is none."""
    second = state.second
    assert second is not None
    if second.pulling:
        subject = str(second.attempt)
        return _with(state, second, ending=second.ending or reason), (
            Abandon(second.attempt),
            Disarm(Timer.STALL, subject),
            Arm(Timer.QUIET, state.journey.limits.quiet, subject),
        )
    return _left(state, second, reason)


def _ended(state: Transferring, second: Second, event: events.PullEnded) -> Aside:
    under_way = event.left_of(second.pulling)
    left_out = (second.pulling - under_way) & state.journey.missing
    state = _with(state, second, pulling=under_way)
    if second.ending:
        return (state, ()) if under_way else _left(state, second, second.ending)
    if event.reason or (left_out and (state.journey.root or second.have is None)):
        return leave(state, event.reason or "ended early")
    if left_out:  # of unknown digest: when it tells of more
        return state, (_watch(state),)
    state, effects = pull_more(state)
    return state, (*effects, _watch(state))


def _left(state: Transferring, second: Second, reason: str) -> Aside:
    """Its part is sought elsewhere, as long as there is somebody to try; the first source may give it, too.

    What a quicker one is to bring instead is sought nowhere else.
    """
    journey, released = state.journey, moves.end_second(second, reason)
    if reason == NARROW:
        state = _alone_again(replace(state, journey=replace(moves.detour(journey, NARROW), narrow=True)))
        return state, released
    if second.source is not None:
        journey = moves.leaving(replace(journey, tries=journey.tries + 1), second.source, reason)
    state = replace(state, journey=journey, second=None)
    if second.source is None or reason == OUTRUN or journey.tries >= journey.limits.sources:
        return _alone_again(state), released
    state, effects = moves.seek_second(state)
    return state, (*released, *effects)


def _alone_again(state: Transferring) -> Transferring:
    """With the first source only; outside of a crowd it gives everything, as before."""
    return replace(state, second=None, part=-1, alone=0.0) if state.alone else replace(state, second=None)


def _with(state: Transferring, second: Second, **changes: object) -> Transferring:
    return replace(state, second=replace(second, **changes))


def _watch(state: Transferring) -> Arm:
    """Its stall clock; patience is the first source's matter."""
    second = state.second
    assert second is not None
    stall = state.journey.limits.stall * (1.0 if second.pulling else moves.WAITING)
    return Arm(Timer.STALL, stall, str(second.attempt))
