"""TRANSFER: chunks arrive and are verified one by one.

Decides when a transfer has stalled, when a source is left, and that nothing goes on before an
abandoned pull is quiet. Verified chunks are kept whatever happens. Whether all of it together
is right is decided in ``verify.py``.
"""

from __future__ import annotations

from msgspec.structs import replace

from coldstart.effects import Arm, Disarm, Release, ReplaceMemory
from coldstart.events import (
    BytesLanded,
    ChunkCorrupted,
    ChunkVerified,
    DrainRequested,
    Expired,
    FleetChanged,
    MemoryReplaced,
    OfferReceived,
    OfferRefused,
    PullEnded,
    Timer,
)
from coldstart.phases import groups, moves
from coldstart.phases.states import Abandoning, Failure, Move, Page, Replacing, Transferring
from coldstart.plan import Chunks


def bytes_landed(state: Transferring, event: BytesLanded, at: float) -> Move:
    """Progress: the stall clock starts anew."""
    return state, (Arm(Timer.STALL, state.journey.limits.stall),)


def chunk_verified(state: Transferring, event: ChunkVerified, at: float) -> Move:
    journey = state.journey.with_chunk(event.chunk, state.source.worker)
    return replace(state, journey=journey), (Arm(Timer.STALL, journey.limits.stall),)


def chunk_corrupted(state: Transferring, event: ChunkCorrupted, at: float) -> Move:
    """A source that served wrong bytes is never asked again."""
    return moves.abandon(state.journey, state.source, f"chunk {event.chunk} has wrong bytes", exclude=True)


def pull_ended(state: Transferring, event: PullEnded, at: float) -> Move:
    """Everything is here, or the source has failed."""
    if not event.quiet:
        return _replace_memory(state, event.reason or "not quiet")
    if state.journey.complete:
        return moves.check(state.journey, state.source)
    return moves.leave_source(state.journey, state.source, event.reason or "ended early", at, exclude=True)


def offer_refused(state: Transferring, event: OfferRefused, at: float) -> Move:
    """The source takes its offer back: it drains, or its weights change."""
    return moves.abandon(state.journey, state.source, f"revoked ({event.reason})", exclude=True)


def expired(state: Transferring, event: Expired, at: float) -> Move:
    """Nothing landed for too long; the time counts against patience."""
    if event.timer is not Timer.STALL:
        return state, ()
    patience = max(0.0, state.journey.patience - state.journey.limits.stall)
    journey = replace(state.journey, patience=patience)
    return moves.abandon(journey, state.source, "stalled", exclude=True)


def drain_requested(state: Transferring | Abandoning, event: DrainRequested, at: float) -> Move:
    return moves.leave(state.journey, state.source)


def late_chunk(state: Abandoning, event: ChunkVerified, at: float) -> Move:
    """It landed before the end and its digest is right: kept."""
    return replace(state, journey=state.journey.with_chunk(event.chunk, state.source.worker)), ()


def abandoned(state: Abandoning, event: PullEnded, at: float) -> Move:
    """The old pull is quiet: go on with what is missing."""
    if not event.quiet:
        return _replace_memory(state, state.reason)
    if state.journey.complete:
        state_after, effects = moves.check(state.journey, state.source)
    else:
        state_after, effects = moves.leave_source(state.journey, state.source, state.reason, at, exclude=state.exclude)
    return state_after, (Disarm(Timer.QUIET), *effects)


def never_quiet(state: Abandoning, event: Expired, at: float) -> Move:
    """Somebody may still write into the target: it is not used again."""
    if event.timer is not Timer.QUIET:
        return state, ()
    return _replace_memory(state, state.reason)


def memory_replaced(state: Replacing, event: MemoryReplaced, at: float) -> Move:
    """Fresh memory, nothing in it: storage, since time has been lost already."""
    return moves.load(replace(state.journey, verified=Chunks(), origins=()), leading=False)


def not_replaced(state: Replacing, event: Expired, at: float) -> Move:
    if event.timer is not Timer.QUIET:
        return state, ()
    return moves.fail(state.journey, Failure.MEMORY, "the target memory could not be replaced")


def drain_replacing(state: Replacing, event: DrainRequested, at: float) -> Move:
    return moves.leave(state.journey, None)


def _replace_memory(state: Transferring | Abandoning, reason: str) -> Move:
    journey = moves.detour(state.journey, f"{state.source.worker}: {reason}, memory quarantined")
    return Replacing(journey), (
        Disarm(Timer.STALL),
        Release(journey.attempt, state.source.worker, reason),
        ReplaceMemory(journey.attempt),
        Arm(Timer.QUIET, journey.limits.quiet),
    )


_EARLIER = groups.CLAIM_ANSWERS | groups.TRUTH_ANSWERS
_LATER = groups.PUBLISH_ANSWERS | groups.CHECK_ANSWERS | groups.DRAINED

PAGES = (
    Page(
        Transferring,
        handled={
            BytesLanded: bytes_landed,
            ChunkVerified: chunk_verified,
            ChunkCorrupted: chunk_corrupted,
            PullEnded: pull_ended,
            OfferRefused: offer_refused,
            Expired: expired,
            DrainRequested: drain_requested,
        },
        ignored=_EARLIER | frozenset({OfferReceived, FleetChanged}),
        illegal=groups.START | groups.MEMORY_ANSWERS | _LATER,
    ),
    Page(
        Abandoning,
        handled={
            ChunkVerified: late_chunk,
            PullEnded: abandoned,
            Expired: never_quiet,
            DrainRequested: drain_requested,
        },
        ignored=_EARLIER | groups.OFFER_ANSWERS | frozenset({BytesLanded, ChunkCorrupted, FleetChanged}),
        illegal=groups.START | groups.MEMORY_ANSWERS | _LATER,
    ),
    Page(
        Replacing,
        handled={MemoryReplaced: memory_replaced, Expired: not_replaced, DrainRequested: drain_replacing},
        ignored=_EARLIER | groups.OFFER_ANSWERS | groups.PULL_REPORTS | frozenset({FleetChanged}),
        illegal=groups.START | _LATER,
    ),
)
