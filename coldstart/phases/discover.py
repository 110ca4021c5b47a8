"""DISCOVER: find a source, follow a loader, or be the loader.

Decides what the answer to a claim leads to and how long a joiner stands in line. No byte is asked for
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
    LoaderElected,
    SourceClaimed,
    Started,
    Timer,
    TruthDisputed,
)
from coldstart.phases import groups, moves
from coldstart.phases.states import Discovering, Failure, Idle, Journey, Move, Page, Waiting


def started(state: Idle, event: Started, at: float) -> Move:
    """Skeleton and memory are ready: look for a source, unless the weights are here already."""
    journey = replace(
        state.journey,
        total=event.chunks,
        partial=event.partial,
        chunk_bytes=event.chunk_bytes,
        transports=event.transports,
        connecting=event.connecting,
        patience=state.journey.limits.patience,
    )
    return moves.load(journey, leading=False) if event.loaded else moves.seek(journey, at)


def source_claimed(state: Discovering | Waiting, event: SourceClaimed, at: float) -> Move:
    """Shake hands; but a source whose truth the store has lost cannot be verified yet.

    One that still receives may have none: whoever reads storage states the digests one by one.
    """
    if _other_truth(state, event.root):
        failed, effects = _disputed(state, event.root)
        return failed, (Release(event.attempt, event.source.worker, "truth conflict"), *effects)
    journey, since = _waited(state, at), at if _follows(state) else state.since
    if event.root or event.source.have < event.source.total:
        return moves.shake(journey, event.source, event.root, since, event.part)
    release = Release(event.attempt, event.source.worker, "no truth published")
    waiting, effects = moves.wait(replace(journey, attempt=journey.attempt + 1), "", since)
    return waiting, (release, *effects)


def loader_elected(state: Discovering | Waiting, event: LoaderElected, at: float) -> Move:
    """Read storage for everybody; a truth that only we still know must hold for it, too."""
    if _other_truth(state, event.root):
        return _disputed(state, event.root)
    journey = _waited(state, at) if _follows(state) else moves.spent(state.journey, state.since, at)
    return moves.load(replace(journey, root=event.root or journey.root), leading=True)


def claim_deferred(state: Discovering | Waiting, event: ClaimDeferred, at: float) -> Move:
    """Stand in line, for the loader or for a slot; from when on matters where it changes who pays for the time."""
    if isinstance(state, Discovering) or bool(event.leader) == bool(state.leader):
        return moves.wait(state.journey, event.leader, state.since)
    if event.leader:
        return moves.wait(moves.spent(state.journey, state.since, at), event.leader, at)
    waiting, effects = moves.wait(_waited(state, at), "", at)
    return waiting, (*effects, Arm(Timer.PATIENCE, waiting.journey.patience))


def claim_failed(state: Discovering | Waiting, event: ClaimFailed, at: float) -> Move:
    """Without coordination there are no peers: storage."""
    return moves.load(moves.detour(_waited(state, at), event.reason), leading=False)


def truth_disputed(state: Discovering | Waiting, event: TruthDisputed, at: float) -> Move:
    """Nobody knows which bytes are right, so nothing may be served."""
    return _disputed(state, *event.roots)


def discovering_expired(state: Discovering, event: Expired, at: float) -> Move:
    """Patience is spent while the claim is on its way."""
    if event.timer is not Timer.PATIENCE:
        return state, ()
    return moves.leave_line(state.journey, "no source within the budget")


def waiting_expired(state: Waiting, event: Expired, at: float) -> Move:
    """Keep the place in line; or, when the time for it is over, read storage."""
    match event.timer:
        case Timer.RETRY if state.leader and _waited(state, at).followed >= state.journey.limits.follow:
            return moves.leave_line(_waited(state, at), "the loader took too long")
        case Timer.RETRY:
            return state, (moves.claim(state.journey), Arm(Timer.RETRY, state.journey.limits.retry))
        case Timer.PATIENCE if not state.leader:
            return moves.leave_line(state.journey, "every source stayed busy")
        case _:
            return state, ()


def drain_requested(state: Idle | Discovering | Waiting, event: DrainRequested, at: float) -> Move:
    """Nothing is held yet."""
    return moves.leave(state.journey, None)


def _follows(state: Discovering | Waiting) -> bool:
    return isinstance(state, Waiting) and bool(state.leader)


def _waited(state: Discovering | Waiting, at: float) -> Journey:
    """The journey with the time that a leader was followed noted."""
    if not _follows(state):
        return state.journey
    return replace(state.journey, followed=state.journey.followed + at - state.since)


def _other_truth(state: Discovering | Waiting, root: str) -> bool:
    """Whether the store names another truth than the one that our chunks were verified against."""
    return bool(root and state.journey.root) and root != state.journey.root


def _disputed(state: Discovering | Waiting, *roots: str) -> Move:
    known = dict.fromkeys((state.journey.root, *roots))
    named = " and ".join(root[:12] for root in known if root)
    return moves.fail(state.journey, Failure.CONFLICT, f"published truths disagree: {named}")


_LATER = (
    groups.TRUTH_ANSWERS
    | groups.OFFER_ANSWERS
    | groups.CONNECT_ANSWERS
    | groups.PULL_REPORTS
    | groups.STATE_ANSWERS
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
        ignored=frozenset(),
        illegal=groups.START | _LATER,
    ),
    Page(
        Waiting,
        handled={
            SourceClaimed: source_claimed,
            LoaderElected: loader_elected,
            ClaimDeferred: claim_deferred,
            ClaimFailed: claim_failed,
            TruthDisputed: truth_disputed,
            Expired: waiting_expired,
            DrainRequested: drain_requested,
        },
        ignored=groups.OFFER_ANSWERS,
        illegal=(groups.START | _LATER) - groups.OFFER_ANSWERS,
    ),
)
