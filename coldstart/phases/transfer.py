"""TRANSFER: chunks arrive, are verified one by one, and may be lent on at once.

A source may still receive itself; then what it has by now is fetched, and more when it tells of more.
Decides when a transfer has stalled or is too slow, when a source is left, and that nothing goes on
before an abandoned pull is quiet. Verified chunks are kept whatever happens. Whether all of it together
is right is decided in ``verify.py``.
"""

from __future__ import annotations

from msgspec.structs import replace

from coldstart.effects import Abandon, Arm, Disarm, Effect, EndSharing, Release, ReplaceMemory, Strike
from coldstart.events import (
    AttemptEvent,
    BytesLanded,
    ChunkCorrupted,
    ChunkVerified,
    DrainRequested,
    Expired,
    MemoryRefused,
    MemoryReplaced,
    OfferReceived,
    OfferRefused,
    PullEnded,
    SourceProgressed,
    StorageOpened,
    StorageRefused,
    Timer,
    TruthReceived,
)
from coldstart.phases import aside, endgame, groups, moves, weigh, widen
from coldstart.phases.journey import Journey
from coldstart.phases.states import (
    Abandoning,
    Failure,
    Further,
    Move,
    Page,
    Replacing,
    Transferring,
    further_at,
    further_of,
)
from coldstart.plan import Pace
from coldstart.portions import OUTRUN
from coldstart.ports import Advert

LITTLE = 0.001
"""Seconds that are not worth another look at the clock."""


def bytes_landed(state: Transferring, event: BytesLanded, at: float) -> Move:
    """Progress: the stall clock starts anew, unless it is too little."""
    limits = state.journey.limits
    pace = state.pace.landing(event.nbytes, limits.floor, at)
    state = replace(state, pace=pace, seen=at, brought=state.brought.more(event.nbytes, at))
    if moves.tolerance(state) <= 0:
        return _leave(state, _too_slow(pace, at), at)
    if endgame.outruns(state, at):
        return _leave(state, OUTRUN, at)
    journey, asked = weigh.under_way(state, at)
    state, sought = widen.consider(replace(state, journey=journey), at)
    return state, (moves.watch(state), *moves.share(journey, journey.verified), *asked, *sought)


def chunk_verified(state: Transferring, event: ChunkVerified, at: float) -> Move:
    """Its bytes have been counted when they landed; digests that come after the last byte are progress, too."""
    journey = state.journey.with_chunk(event.chunk, state.source.worker)
    state = replace(state, journey=journey)
    effects: tuple[Effect, ...] = ()
    if state.further or state.widenable:
        state, effects = moves.pull_more(state)
    return state, (*effects, moves.watch(state), *moves.share(journey, journey.verified))


def source_progressed(state: Transferring, event: SourceProgressed, at: float) -> Move:
    """Maybe more to fetch. To one that waits for it, and to those who wait for that one, it is a sign that it
    goes on; but the waiting is time lost."""
    if state.have is None:
        return state, ()
    state = replace(state, have=event.have)
    if state.pulling:
        return moves.pull_more(state)
    state = replace(state, pace=state.pace.landing(0, state.journey.limits.floor, at), seen=at)
    if moves.tolerance(state) <= 0:
        return _leave(state, _too_slow(state.pace, at), at)
    state, effects = moves.pull_more(state)
    return state, (*effects, moves.watch(state), *moves.share(state.journey, state.journey.verified))


def truth_received(state: Transferring, event: TruthReceived, at: float) -> Move:
    """It has been published meanwhile, and what is verified equals it. From now on slowness costs patience."""
    if state.journey.root:
        return state, ()
    journey = replace(moves.lose(state, at), root=event.root, fetched=event.root)
    state = replace(state, journey=journey, pace=Pace.begun(at), had=len(journey.verified))
    return state, (moves.watch(state),)


def chunk_corrupted(state: Transferring, event: ChunkCorrupted, at: float) -> Move:
    """A source that served wrong bytes is not asked again, by nobody until it has proven itself."""
    abandoning, effects = moves.abandon(state, f"chunk {event.chunk} has wrong bytes")
    return abandoning, (*effects, Strike(event.attempt, state.source, event.chunk))


def pull_ended(state: Transferring, event: PullEnded, at: float) -> Move:
    """Everything is here, or all that the source had, or it has failed.

    Chunks whose digest nobody has stated yet are left out; they are asked for again when it tells of more.
    """
    if not event.quiet:
        return _replace_memory(state, event.reason or "not quiet", at)
    under_way = event.left_of(state.pulling)
    left_out = (state.pulling - under_way) & state.journey.missing
    state = replace(state, pulling=under_way)
    if state.journey.complete:
        return _complete_unless_under_way(state)
    if not event.reason and not left_out:
        state, effects = moves.pull_more(state)
        state, ended = _outrun(state, at)
        return state, (*effects, *ended, moves.watch(state))
    if not event.reason and not state.journey.root and state.have is not None:
        return state, (moves.watch(state),)
    reason = event.reason or "ended early"
    if state.pulling or state.further:
        return _leave(state, reason, at)
    left, effects = moves.leave_transfer(state, reason, at)
    return left, (Disarm(Timer.STALL), *effects)


def _complete(journey: Journey, source: Advert | None) -> Move:
    """All chunks are right; where no truth is published yet, what the storage reader has stated is all of it."""
    if not journey.root:
        return moves.publish(journey, source)
    return moves.check(journey, source)


def offer_refused(state: Transferring, event: OfferRefused, at: float) -> Move:
    """The source takes its offer back: it drains, or its weights change."""
    return _leave(state, f"revoked ({event.reason})", at)


def storage_opened(state: Transferring, event: StorageOpened, at: float) -> Move:
    """It is quicker for what is still missing."""
    journey = weigh.opened(state.journey, event)
    return (state, ()) if journey is None else _leave(replace(state, journey=journey), weigh.chosen(journey), at)


def storage_refused(state: Transferring, event: StorageRefused, at: float) -> Move:
    return replace(state, journey=weigh.refused(state.journey, event)), ()


def expired(state: Transferring, event: Expired, at: float) -> Move:
    """Nothing landed for too long, or for as long as there was patience left."""
    if event.subject:
        return _further_expired(state, event, at)
    if event.timer is not Timer.STALL:
        return state, ()
    limits = state.journey.limits
    left = state.seen + limits.stall * (1.0 if state.pulling else moves.WAITING) - at
    stood = left < LITTLE and not state.idle
    if state.further and not stood:  # what others have brought since counts, too
        state = replace(state, pace=state.pace.landing(0, limits.floor, at))
        if moves.tolerance(state) > LITTLE:
            return state, (moves.watch(state) if state.idle else Arm(Timer.STALL, min(left, moves.tolerance(state))),)
    why = "stalled" if stood or not state.pace.landed else _too_slow(state.pace, at)
    idle = not _under_way(state)
    if idle and not state.journey.root and state.journey.tries < limits.sources:
        return _back_in_line(state, why, at)
    return _leave(state, why, at)


def drain_requested(state: Transferring | Abandoning, event: DrainRequested, at: float) -> Move:
    gone, effects = moves.leave(state.journey, state.source)
    return gone, (*_abandon_further(state), *moves.end_further(state, "cancelled"), *effects)


# ------------------------------------------------------------------------------------ further sources


def further_moved(state: Transferring, other: Further, event: AttemptEvent, at: float) -> Move:
    """What its attempt brought; the first one takes what nobody else is to bring any more, then the others do."""
    if isinstance(event, PullEnded) and not event.quiet:
        return _replace_memory(state, other.ending or event.reason or "not quiet", at)
    if isinstance(event, TruthReceived):
        return truth_received(state, event, at)
    after, effects = aside.step(state, other, event, at)
    if after.journey.complete:
        done, more = _complete_unless_under_way(after)
        return done, (*effects, *more)
    if not isinstance(event, BytesLanded):
        after, more = moves.pull_more(after)
        if more:
            after = replace(after, seen=at)
            effects = (*effects, *more, moves.watch(after))
        after, more = aside.take_over(after, other.attempt)
        effects = (*effects, *more)
    after, ended = _outrun(after, at)
    return after, (*effects, *ended)


def _outrun(state: Transferring, at: float) -> tuple[Transferring, tuple[Effect, ...]]:
    """In the end game: give up the slowest of the further sources, where that pays."""
    slowest = endgame.outrun(state, at)
    return (state, ()) if slowest is None else aside.leave(state, slowest, OUTRUN)


def _further_expired(state: Transferring, event: Expired, at: float) -> Move:
    other = next((each for each in state.further if event.subject == str(each.attempt)), None)
    if other is None:
        return state, ()
    if event.timer is Timer.QUIET:
        return _replace_memory(state, other.ending, at)
    return aside.expired(state, other, event.timer)


def _complete_unless_under_way(state: Transferring) -> Move:
    """All pulls have ended and everything is right; until then, there is nothing to be done but wait."""
    if _under_way(state):
        return state, (Disarm(Timer.STALL),) if not state.pulling else ()
    after, effects = _complete(state.journey, state.source)
    return after, (*moves.end_further(state, "ok"), *effects)


def _under_way(state: Transferring) -> bool:
    """Whether any source was asked for something that it has not brought yet."""
    return bool(state.pulling) or any(each.pulling for each in state.further)


def _abandon_further(state: Transferring | Abandoning) -> tuple[Effect, ...]:
    return tuple([Abandon(each.attempt) for each in further_of(state)])


# ----------------------------------------------------------------------------------------- abandoning


def late_chunk(state: Abandoning, event: ChunkVerified, at: float) -> Move:
    """It landed before the end and its digest is right: kept."""
    other = further_at(state, event.attempt)
    source = state.source if other is None or other.source is None else other.source
    return replace(state, journey=state.journey.with_chunk(event.chunk, source.worker)), ()


def abandoned(state: Abandoning, event: PullEnded, at: float) -> Move:
    """The old pulls are quiet: go on with what is missing."""
    if not event.quiet:
        return _replace_memory(state, state.reason, at)
    state = state.after(event)
    if state.waits:
        return state, ()
    if state.journey.complete:
        after, effects = _complete(state.journey, state.source)
    else:
        after, effects = moves.leave_source(moves.lose(state, at), state.source, state.reason, at)
    return after, (Disarm(Timer.QUIET), *effects)


def never_quiet(state: Abandoning, event: Expired, at: float) -> Move:
    """Somebody may still write into the target: it is not used again."""
    if event.timer is not Timer.QUIET:
        return state, ()
    return _replace_memory(state, state.reason, at)


def memory_replaced(state: Replacing, event: MemoryReplaced, at: float) -> Move:
    """Fresh memory that nobody else knows: go on with what could not be taken along.

    As another attempt: the pull that never became quiet may end at any time, and is no news then.
    """
    journey = moves.spent(state.journey.keeping(event.kept), state.since, at)
    if journey.complete:
        after, effects = _complete(replace(journey, attempt=journey.attempt + 1), None)
    elif journey.tries >= journey.limits.sources:
        after, effects = moves.load(journey, leading=False)
    else:
        after, effects = moves.seek(journey, at)
    return after, (Disarm(Timer.QUIET), *effects)


def memory_refused(state: Replacing, event: MemoryRefused, at: float) -> Move:
    return moves.fail(state.journey, Failure.MEMORY, f"the target memory could not be replaced: {event.reason}")


def not_replaced(state: Replacing, event: Expired, at: float) -> Move:
    if event.timer is not Timer.QUIET:
        return state, ()
    return moves.fail(state.journey, Failure.MEMORY, "the target memory could not be replaced in time")


def drain_replacing(state: Replacing, event: DrainRequested, at: float) -> Move:
    return moves.leave(state.journey, None)


def _leave(state: Transferring, reason: str, at: float) -> Move:
    """End the pulls and go on when they are quiet, or at once where none is under way."""
    if _under_way(state):
        return moves.abandon(state, reason)
    left, effects = moves.leave_source(moves.lose(state, at), state.source, reason, at)
    return left, (Disarm(Timer.STALL), *moves.end_further(state, reason), *effects)


def _back_in_line(state: Transferring, reason: str, at: float) -> Move:
    """It has given all that it had, and waits itself for whoever reads storage: that one has failed.

    It is no worse than we are, and may be the next to read: to exclude it would be to read beside it.
    """
    journey = moves.detour(moves.lose(state, at), f"{state.source.worker}: {reason}")
    journey = replace(journey, failed=())
    after, effects = moves.seek(journey, at)
    release = Release(journey.attempt, state.source.worker, reason)
    shared = moves.share(journey, journey.verified)
    return after, (Disarm(Timer.STALL), *moves.end_further(state, reason), release, *shared, *effects)


def _too_slow(pace: Pace, at: float) -> str:
    return f"too slow ({pace.rate(at) / 1e6:.3g} MB/s)"


def _replace_memory(state: Transferring | Abandoning, reason: str, at: float) -> Move:
    journey = moves.leaving(moves.lose(state, at), state.source, f"{reason}, memory quarantined")
    return Replacing(journey, state.source, at), (
        Abandon(journey.attempt),
        *_abandon_further(state),
        *moves.end_further(state, reason),
        Disarm(Timer.STALL),
        EndSharing(),
        Release(journey.attempt, state.source.worker, reason),
        ReplaceMemory(journey.attempt, journey.verified),
        Arm(Timer.QUIET, journey.limits.check),
    )


_EARLIER = groups.CLAIM_ANSWERS | groups.TRUTH_ANSWERS
_EARLY = groups.START | groups.CONNECT_ANSWERS
_LATER = groups.STATE_ANSWERS | groups.PUBLISH_ANSWERS | groups.CHECK_ANSWERS | groups.DRAINED

PAGES = (
    Page(
        Transferring,
        handled={
            BytesLanded: bytes_landed,
            ChunkVerified: chunk_verified,
            ChunkCorrupted: chunk_corrupted,
            PullEnded: pull_ended,
            OfferRefused: offer_refused,
            SourceProgressed: source_progressed,
            TruthReceived: truth_received,
            StorageOpened: storage_opened,
            StorageRefused: storage_refused,
            Expired: expired,
            DrainRequested: drain_requested,
        },
        ignored=(_EARLIER - {TruthReceived}) | frozenset({OfferReceived}),
        illegal=_EARLY | groups.MEMORY_ANSWERS | _LATER,
    ),
    Page(
        Abandoning,
        handled={
            ChunkVerified: late_chunk,
            PullEnded: abandoned,
            Expired: never_quiet,
            DrainRequested: drain_requested,
        },
        ignored=_EARLIER | groups.ADMISSION | groups.OFFER_ANSWERS | frozenset({BytesLanded, ChunkCorrupted}),
        illegal=_EARLY | groups.MEMORY_ANSWERS | _LATER,
    ),
    Page(
        Replacing,
        handled={
            MemoryReplaced: memory_replaced,
            MemoryRefused: memory_refused,
            Expired: not_replaced,
            DrainRequested: drain_replacing,
        },
        ignored=_EARLIER | groups.ADMISSION | groups.OFFER_ANSWERS | groups.PULL_REPORTS,
        illegal=_EARLY | _LATER,
    ),
)
