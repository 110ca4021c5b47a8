"""VERIFY: every chunk is right; is the whole?

Decides what stands between complete bytes and serving: truth published without conflict, the
source's weights unchanged while they were read, the builder's self-check. What comes after is
in ``serve.py``.
"""

from __future__ import annotations

from msgspec.structs import replace

from coldstart.effects import Disarm, Effect, EndSharing, Release
from coldstart.events import (
    CheckFailed,
    CheckPassed,
    DrainRequested,
    Expired,
    SourceChanged,
    Timer,
    TruthConflicted,
    TruthPublished,
    TruthUnpublished,
)
from coldstart.phases import agree, groups, moves
from coldstart.phases.states import Checking, Failure, Move, Page, Publishing


def truth_published(state: Publishing, event: TruthPublished, at: float) -> Move:
    return moves.check(replace(state.journey, root=event.root), state.source)


def truth_unpublished(state: Publishing, event: TruthUnpublished, at: float) -> Move:
    """What a storage reader, we or another, has read is right whether or not others can hear of it."""
    return moves.check(moves.detour(state.journey, event.reason), state.source)


def truth_conflicted(state: Publishing, event: TruthConflicted, at: float) -> Move:
    """Another reader of the same storage saw other bytes: neither is believed."""
    roots = " and ".join(root[:12] for root in event.roots)
    failed, effects = moves.fail(state.journey, Failure.CONFLICT, f"storage readers disagree: {roots}")
    return failed, (*_given_back(state, "truth conflict"), *effects)


def source_changed(state: Checking, event: SourceChanged, at: float) -> Move:
    """What we read may be a mixture of two weights: nothing of it is kept, or lent meanwhile."""
    journey = state.journey.without_origin(event.source)
    if state.source is None or journey.complete:
        after, effects = moves.load(moves.detour(journey, event.reason), leading=False)
    else:
        after, effects = moves.leave_source(journey, state.source, event.reason, at)
    return after, (Disarm(Timer.CHECK), EndSharing(), *effects)


def check_passed(state: Checking, event: CheckPassed, at: float) -> Move:
    return agree.before_serve(state.journey, at)


def check_failed(state: Checking, event: CheckFailed, at: float) -> Move:
    """The bytes are right and the module is not: no other source would help."""
    return moves.fail(state.journey, Failure.CHECK, event.reason)


def expired(state: Publishing | Checking, event: Expired, at: float) -> Move:
    if event.timer is not Timer.CHECK:
        return state, ()
    failed, effects = moves.fail(state.journey, Failure.CHECK, "the final check took too long")
    return failed, (*_given_back(state, "too late"), *effects)


def drain_requested(state: Publishing | Checking, event: DrainRequested, at: float) -> Move:
    return moves.leave(state.journey, state.source)


def _given_back(state: Publishing | Checking, outcome: str) -> tuple[Effect, ...]:
    return () if state.source is None else (Release(state.journey.attempt, state.source.worker, outcome),)


_EARLIER = groups.CLAIM_ANSWERS | groups.TRUTH_ANSWERS | groups.OFFER_ANSWERS | groups.STATE_ANSWERS

PAGES = (
    Page(
        Publishing,
        handled={
            TruthPublished: truth_published,
            TruthUnpublished: truth_unpublished,
            TruthConflicted: truth_conflicted,
            Expired: expired,
            DrainRequested: drain_requested,
        },
        ignored=_EARLIER,
        illegal=groups.START
        | groups.CONNECT_ANSWERS
        | groups.PULL_REPORTS
        | groups.MEMORY_ANSWERS
        | groups.CHECK_ANSWERS
        | groups.DRAINED,
    ),
    Page(
        Checking,
        handled={
            CheckPassed: check_passed,
            CheckFailed: check_failed,
            SourceChanged: source_changed,
            Expired: expired,
            DrainRequested: drain_requested,
        },
        ignored=_EARLIER | groups.PUBLISH_ANSWERS,
        illegal=groups.START | groups.CONNECT_ANSWERS | groups.PULL_REPORTS | groups.MEMORY_ANSWERS | groups.DRAINED,
    ),
)
