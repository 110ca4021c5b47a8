"""DISCOVER: find a source, follow a loader, or be the loader.

Decides what the answer to a claim leads to and how long a joiner waits. No byte is asked for
here; that begins in ``handshake.py``. Storage is read in ``fallback.py``.
"""

from __future__ import annotations

from msgspec.structs import replace

from coldstart.effects import Arm, Release
from coldstart.events import (
    ClaimDeferred,
    ClaimFailed,
    DrainRequested,
    Expired,
    FleetChanged,
    LoaderElected,
    SourceClaimed,
    Started,
    Timer,
    TruthDisputed,
)
from coldstart.phases import groups, moves
from coldstart.phases.states import Discovering, Failure, Idle, Move, Page, Waiting

PAUSE = 0.05
"""Seconds between an answer and the next claim, at least: changes come in bursts."""


def started(state: Idle, event: Started, at: float) -> Move:
    """Skeleton and memory are ready: look for a source, unless the weights are here already."""
    journey = replace(
        state.journey,
        total=event.chunks,
        partial=event.partial,
        chunk_bytes=event.chunk_bytes,
        transports=event.transports,
        patience=state.journey.limits.patience,
    )
    return moves.load(journey, leading=False) if event.loaded else moves.seek(journey, at)


def source_claimed(state: Discovering, event: SourceClaimed, at: float) -> Move:
    """Shake hands; but a source whose truth the store has lost cannot be verified yet."""
    if _other_truth(state, event.root):
        failed, effects = _disputed(state, event.root)
        return failed, (Release(event.attempt, event.source.worker, "truth conflict"), *effects)
    if event.root:
        return moves.shake(state.journey, event.source, event.root, state.since)
    waiting, effects = moves.wait(state.journey, "", state.since, at)
    return waiting, (Release(event.attempt, event.source.worker, "no truth published"), *effects)


def loader_elected(state: Discovering, event: LoaderElected, at: float) -> Move:
    """Read storage for everybody; a truth that only we still know must hold for it, too."""
    if _other_truth(state, event.root):
        return _disputed(state, event.root)
    journey = moves.spent(state.journey, state.since, at)
    return moves.load(replace(journey, root=event.root or journey.root), leading=True)


def claim_deferred(state: Discovering, event: ClaimDeferred, at: float) -> Move:
    """Wait for the loader or for a slot."""
    return moves.wait(state.journey, event.leader, state.since, at)


def claim_failed(state: Discovering, event: ClaimFailed, at: float) -> Move:
    """Without coordination there are no peers: storage."""
    return moves.load(moves.detour(state.journey, event.reason), leading=False)


def truth_disputed(state: Discovering, event: TruthDisputed, at: float) -> Move:
    """Nobody knows which bytes are right, so nothing may be served."""
    return _disputed(state, *event.roots)


def discovering_expired(state: Discovering, event: Expired, at: float) -> Move:
    """Patience is spent while the claim is on its way."""
    if event.timer is not Timer.PATIENCE:
        return state, ()
    return moves.load(moves.detour(state.journey, "no source within the budget"), leading=False)


def waiting_expired(state: Waiting, event: Expired, at: float) -> Move:
    """Ask again; or, when patience is spent, read storage."""
    match event.timer:
        case Timer.RETRY:
            return _ask_again(state, at)
        case Timer.PATIENCE if not state.leader:
            return moves.load(moves.detour(state.journey, "every source stayed busy"), leading=False)
        case _:
            return state, ()


def fleet_changed(state: Waiting, event: FleetChanged, at: float) -> Move:
    """Somebody may have weights or a slot now; but our own release is a change, too."""
    if at - state.answered < PAUSE:
        return state, (Arm(Timer.RETRY, PAUSE),)
    return _ask_again(state, at)


def drain_requested(state: Idle | Discovering | Waiting, event: DrainRequested, at: float) -> Move:
    """Nothing is held yet."""
    return moves.leave(state.journey, None)


def _other_truth(state: Discovering, root: str) -> bool:
    """Whether the store names another truth than the one that our chunks were verified against."""
    return bool(root and state.journey.root) and root != state.journey.root


def _disputed(state: Discovering, *roots: str) -> Move:
    known = dict.fromkeys((state.journey.root, *roots))
    named = " and ".join(root[:12] for root in known if root)
    return moves.fail(state.journey, Failure.CONFLICT, f"published truths disagree: {named}")


def _ask_again(state: Waiting, at: float) -> Move:
    if state.leader:
        followed = state.journey.followed + at - state.since
        return moves.seek(replace(state.journey, followed=followed), at)
    return moves.seek(moves.spent(state.journey, state.since, at), at)


_LATER = (
    groups.TRUTH_ANSWERS
    | groups.OFFER_ANSWERS
    | groups.PULL_REPORTS
    | groups.MEMORY_ANSWERS
    | groups.PUBLISH_ANSWERS
    | groups.CHECK_ANSWERS
    | groups.DRAINED
)

PAGES = (
    Page(
        Idle,
        handled={Started: started, DrainRequested: drain_requested},
        ignored=groups.AMBIENT,
        illegal=groups.CLAIM_ANSWERS | _LATER,
    ),
    Page(
        Discovering,
        handled={
            SourceClaimed: source_claimed,
            LoaderElected: loader_elected,
            ClaimDeferred: claim_deferred,
            ClaimFailed: claim_failed,
            TruthDisputed: truth_disputed,
            Expired: discovering_expired,
            DrainRequested: drain_requested,
        },
        ignored=frozenset({FleetChanged}),
        illegal=groups.START | _LATER,
    ),
    Page(
        Waiting,
        handled={FleetChanged: fleet_changed, Expired: waiting_expired, DrainRequested: drain_requested},
        ignored=groups.CLAIM_ANSWERS | groups.OFFER_ANSWERS,
        illegal=(groups.START | _LATER) - groups.OFFER_ANSWERS,
    ),
)
