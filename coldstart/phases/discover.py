"""DISCOVER: find a source, follow a loader, or be the loader.

Decides what the answer to a claim leads to and how long a joiner stands in line. No byte is asked for
here; that begins in ``handshake.py``. Storage is read in ``fallback.py``.
"""

from __future__ import annotations

from msgspec.structs import replace

from coldstart.effects import Arm, Disarm, Release
from coldstart.events import (
    ClaimDeferred,
    ClaimFailed,
    DrainRequested,
    Expired,
    LoaderElected,
    SourceClaimed,
    Started,
    StorageOpened,
    StorageRefused,
    Timer,
    TruthDisputed,
)
from coldstart.phases import groups, moves, weigh
from coldstart.phases.journey import Journey
from coldstart.phases.states import Discovering, Failure, Idle, Move, Page, Waiting


def started(state: Idle, event: Started, at: float) -> Move:
    """Skeleton and memory are ready: look for a source, unless the weights are here already."""
    journey = replace(
        state.journey,
        total=event.chunks,
        partial=event.partial,
        chunk_bytes=event.chunk_bytes,
        transports=event.transports,
        connecting=event.connecting,
        growing=event.growing,
        abortable=event.abortable,
        storage_rate=event.storage_rate,
        patience=state.journey.limits.patience,
    )
    return moves.load(journey, leading=False) if event.loaded else moves.seek(journey, at)


def source_claimed(state: Discovering | Waiting, event: SourceClaimed, at: float) -> Move:
    """Shake hands; but a source whose truth the store has lost cannot be verified yet.

    One that still receives may have none: whoever reads storage states the digests one by one.
    """
    if event.source.unproven:
        return _refused(state, event, at)
    if _other_truth(state, event.root):
        failed, effects = _disputed(state, event.root)
        return failed, (Release(event.attempt, event.source.worker, "truth conflict"), *effects)
    journey, since = replace(_waited(state, at), link=event.rate), at if _follows(state) else state.since
    if event.root or event.source.have < event.source.total:
        after, effects = moves.shake(journey, event.source, event.root, since, event.part)
        journey, asked = weigh.at_source(after.journey, event.source, event.rate, at)
        return replace(after, journey=journey), (*effects, *asked)
    release = Release(event.attempt, event.source.worker, "no truth published")
    waiting, effects = moves.wait(replace(journey, attempt=journey.attempt + 1), "", since)
    return waiting, (release, *effects)


def _refused(state: Discovering | Waiting, event: SourceClaimed, at: float) -> Move:
    """A source that nobody with the fleet's keys has advertised was given its chance: no answer is waited for."""
    journey = _waited(state, at) if _follows(state) else moves.spent(state.journey, state.since, at)
    journey = replace(journey, tries=journey.tries + 1)
    after, effects = moves.leave_source(journey, event.source, f"refused ({event.source.unproven})", at)
    return after, (Disarm(Timer.RETRY), *effects)


def loader_elected(state: Discovering | Waiting, event: LoaderElected, at: float) -> Move:
    """Read storage for everybody; a truth that only we still know must hold for it, too."""
    if _other_truth(state, event.root):
        return _disputed(state, event.root)
    journey = _waited(state, at) if _follows(state) else moves.spent(state.journey, state.since, at)
    return moves.load(replace(journey, root=event.root or journey.root), leading=True)


def claim_deferred(state: Discovering | Waiting, event: ClaimDeferred, at: float) -> Move:
    """Stand in line, for the loader or for a slot; from when on matters where it changes who pays for the time."""
    if isinstance(state, Discovering) or bool(event.leader) == bool(state.leader):
        spot = weigh.spot(state, event, at)
        journey, asked = weigh.in_line(state.journey, event, spot, at)
        waiting, effects = moves.wait(journey, event.leader, state.since, spot)
        return waiting, (*effects, *asked)
    if event.leader:
        return moves.wait(moves.spent(state.journey, state.since, at), event.leader, at)
    waiting, effects = moves.wait(_waited(state, at), "", at)
    return waiting, (*effects, Arm(Timer.PATIENCE, waiting.journey.patience))


def storage_opened(state: Waiting, event: StorageOpened, at: float) -> Move:
    """It is quicker: others in line move up."""
    journey = weigh.opened(state.journey, event)
    return (state, ()) if journey is None else moves.leave_line(journey, weigh.chosen(journey))


def storage_refused(state: Waiting, event: StorageRefused, at: float) -> Move:
    return replace(state, journey=weigh.refused(state.journey, event)), ()


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
        illegal=groups.CLAIM_ANSWERS | groups.ADMISSION | _LATER,
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
        illegal=groups.START | groups.ADMISSION | _LATER,
    ),
    Page(
        Waiting,
        handled={
            SourceClaimed: source_claimed,
            LoaderElected: loader_elected,
            ClaimDeferred: claim_deferred,
            ClaimFailed: claim_failed,
            TruthDisputed: truth_disputed,
            StorageOpened: storage_opened,
            StorageRefused: storage_refused,
            Expired: waiting_expired,
            DrainRequested: drain_requested,
        },
        ignored=groups.OFFER_ANSWERS,
        illegal=(groups.START | _LATER) - groups.OFFER_ANSWERS,
    ),
)
