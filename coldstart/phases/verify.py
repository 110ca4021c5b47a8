"""VERIFY: every chunk is right; is the whole?

Decides what stands between complete bytes and serving: truth published without conflict, and the
builder's self-check. A source whose weights have changed since is told of, and is no reason to read
again what is proven. What comes after is in ``serve.py``.
"""

from __future__ import annotations

from msgspec.structs import replace

from coldstart.effects import Effect, Release
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
    """What it holds now is none of ours: each chunk of what it held equals the truth, in our own memory."""
    return moves.check(moves.detour(state.journey, f"{event.source}: {event.reason}"), None)


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


_EARLIER = groups.CLAIM_ANSWERS | groups.ADMISSION | groups.TRUTH_ANSWERS | groups.OFFER_ANSWERS | groups.STATE_ANSWERS

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
