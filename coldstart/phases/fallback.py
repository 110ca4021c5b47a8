"""FALLBACK: read from storage what no peer gave.

Decides when a storage read has failed. Where truth is known, storage must agree with it; where
it is not, what storage gives becomes the truth in ``verify.py``.
"""

from __future__ import annotations

from msgspec.structs import replace

from coldstart.effects import Arm, Disarm, StateDigests
from coldstart.events import (
    BytesLanded,
    ChunkCorrupted,
    ChunkVerified,
    DigestsStated,
    DrainRequested,
    Expired,
    PullEnded,
    StatementRefused,
    Timer,
    TruthMissed,
    TruthReceived,
)
from coldstart.phases import groups, moves, weigh
from coldstart.phases.journey import Journey
from coldstart.phases.states import STORAGE, Failure, LoadFailing, Loading, Move, Page
from coldstart.plan import Chunks


def truth_received(state: Loading, event: TruthReceived, at: float) -> Move:
    """Nobody told us of it before: what is in memory must agree with it."""
    root = event.root or state.journey.root
    return replace(state, journey=replace(state.journey, root=root, fetched=root)), ()


def truth_missed(state: Loading, event: TruthMissed, at: float) -> Move:
    """What storage gives becomes our truth; where it is not the published one, publishing will tell."""
    return replace(state, journey=moves.detour(replace(state.journey, root=""), event.reason)), ()


def bytes_landed(state: Loading, event: BytesLanded, at: float) -> Move:
    """Those who wait for what we read hear that it goes on."""
    journey, leads = state.journey, state.leading and not state.journey.root
    shared = moves.share(journey, state.stated if leads else journey.verified if journey.root else Chunks())
    return state, (Arm(Timer.STALL, journey.limits.storage_stall), *shared)


def chunk_verified(state: Loading, event: ChunkVerified, at: float) -> Move:
    """Where no truth is known, others can use it as soon as they know its digest."""
    journey = state.journey.with_chunk(event.chunk, STORAGE)
    state, clock = replace(state, journey=journey), Arm(Timer.STALL, journey.limits.storage_stall)
    if journey.root:
        return state, (clock, *moves.share(journey, journey.verified))
    if state.leading and journey.partial:
        return state, (clock, StateDigests(journey.attempt, Chunks.of((event.chunk,))))
    return state, (clock,)


def digests_stated(state: Loading, event: DigestsStated, at: float) -> Move:
    state = replace(state, stated=state.stated | event.chunks)
    return state, moves.share(state.journey, state.stated)


def statement_refused(state: Loading, event: StatementRefused, at: float) -> Move:
    """Another reader of the same storage saw other bytes: neither is believed."""
    return moves.stop_load(state.journey, Failure.CONFLICT, event.reason)


def chunk_corrupted(state: Loading, event: ChunkCorrupted, at: float) -> Move:
    """Our storage disagrees with the truth that another storage reader published."""
    reason = f"chunk {event.chunk} of our own copy differs from the published truth"
    return moves.stop_load(state.journey, Failure.CONFLICT, reason)


def pull_ended(state: Loading, event: PullEnded, at: float) -> Move:
    after, effects = _ended(state.journey, event.reason)
    return after, (*weigh.leave_storage(state.journey), *effects)


def _ended(journey: Journey, reason: str) -> Move:
    if reason or not journey.complete:
        return moves.fail(journey, Failure.STORAGE, reason or "storage read ended early")
    return moves.check(journey, None) if journey.root else moves.publish(journey, None)


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
    | groups.ADMISSION
    | groups.CLAIM_ANSWERS
    | groups.TRUTH_ANSWERS
    | groups.OFFER_ANSWERS
    | groups.CONNECT_ANSWERS
    | groups.MEMORY_ANSWERS
    | groups.STATE_ANSWERS
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
            DigestsStated: digests_stated,
            StatementRefused: statement_refused,
            PullEnded: pull_ended,
            Expired: expired,
            DrainRequested: drain_requested,
        },
        ignored=frozenset(),
        illegal=_ILLEGAL - groups.TRUTH_ANSWERS - groups.STATE_ANSWERS,
    ),
    Page(
        LoadFailing,
        handled={PullEnded: stopped, Expired: never_stopped, DrainRequested: drain_requested},
        ignored=groups.TRUTH_ANSWERS
        | groups.STATE_ANSWERS
        | {BytesLanded, ChunkVerified, ChunkCorrupted},
        illegal=_ILLEGAL - groups.TRUTH_ANSWERS - groups.STATE_ANSWERS,
    ),
)
