"""FALLBACK: read from storage what no peer gave.

Decides when a storage read has failed. Where truth is known, storage must agree with it; where
it is not, what storage gives becomes the truth in ``verify.py``.
"""

from __future__ import annotations

from msgspec.structs import replace

from coldstart.effects import Arm, Disarm
from coldstart.events import (
    BytesLanded,
    ChunkCorrupted,
    ChunkVerified,
    DrainRequested,
    Expired,
    FleetChanged,
    PullEnded,
    Timer,
    TruthMissed,
    TruthReceived,
)
from coldstart.phases import groups, moves
from coldstart.phases.states import STORAGE, Failure, LoadFailing, Loading, Move, Page


def truth_received(state: Loading, event: TruthReceived, at: float) -> Move:
    """Nobody told us of it before: what is in memory must agree with it."""
    root = event.root or state.journey.root
    return replace(state, journey=replace(state.journey, root=root, fetched=root)), ()


def truth_missed(state: Loading, event: TruthMissed, at: float) -> Move:
    """What storage gives becomes our truth; where it is not the published one, publishing will tell."""
    return replace(state, journey=moves.detour(replace(state.journey, root=""), event.reason)), ()


def bytes_landed(state: Loading, event: BytesLanded, at: float) -> Move:
    return state, (Arm(Timer.STALL, state.journey.limits.storage_stall),)


def chunk_verified(state: Loading, event: ChunkVerified, at: float) -> Move:
    journey = state.journey.with_chunk(event.chunk, STORAGE)
    return replace(state, journey=journey), (Arm(Timer.STALL, journey.limits.storage_stall),)


def chunk_corrupted(state: Loading, event: ChunkCorrupted, at: float) -> Move:
    """Our storage disagrees with the truth that another storage reader published."""
    reason = f"chunk {event.chunk} of our own copy differs from the published truth"
    return moves.stop_load(state.journey, Failure.CONFLICT, reason)


def pull_ended(state: Loading, event: PullEnded, at: float) -> Move:
    if event.reason or not state.journey.complete:
        return moves.fail(state.journey, Failure.STORAGE, event.reason or "storage read ended early")
    if state.journey.root:
        return moves.check(state.journey, None)
    return moves.publish(state.journey)


def expired(state: Loading, event: Expired, at: float) -> Move:
    if event.timer is not Timer.STALL:
        return state, ()
    return moves.stop_load(state.journey, Failure.STORAGE, "storage read stalled")


def drain_requested(state: Loading | LoadFailing, event: DrainRequested, at: float) -> Move:
    return moves.leave(state.journey, None)


def stopped(state: LoadFailing, event: PullEnded, at: float) -> Move:
    failed, effects = moves.fail(state.journey, state.failure, state.reason)
    return failed, (Disarm(Timer.QUIET), *effects)


def never_stopped(state: LoadFailing, event: Expired, at: float) -> Move:
    if event.timer is not Timer.QUIET:
        return state, ()
    return moves.fail(state.journey, state.failure, state.reason)


_ILLEGAL = (
    groups.START
    | groups.CLAIM_ANSWERS
    | groups.TRUTH_ANSWERS
    | groups.OFFER_ANSWERS
    | groups.MEMORY_ANSWERS
    | groups.PUBLISH_ANSWERS
    | groups.CHECK_ANSWERS
    | groups.DRAINED
)

PAGES = (
    Page(
        Loading,
        handled={
            TruthReceived: truth_received,
            TruthMissed: truth_missed,
            BytesLanded: bytes_landed,
            ChunkVerified: chunk_verified,
            ChunkCorrupted: chunk_corrupted,
            PullEnded: pull_ended,
            Expired: expired,
            DrainRequested: drain_requested,
        },
        ignored=frozenset({FleetChanged}),
        illegal=_ILLEGAL - groups.TRUTH_ANSWERS,
    ),
    Page(
        LoadFailing,
        handled={PullEnded: stopped, Expired: never_stopped, DrainRequested: drain_requested},
        ignored=groups.TRUTH_ANSWERS | {BytesLanded, ChunkVerified, ChunkCorrupted, FleetChanged},
        illegal=_ILLEGAL - groups.TRUTH_ANSWERS,
    ),
)
