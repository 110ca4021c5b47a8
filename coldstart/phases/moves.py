"""How each phase is entered: the state and the effects that go with it.

The one place where a decision leads out of a phase, so that patience, slots and attempts are
accounted for once. Which event causes which move is on the phases' own pages, starting with
``discover.py``.
"""

from __future__ import annotations

from msgspec.structs import replace

from coldstart.effects import (
    Abandon,
    Arm,
    Check,
    ClaimSource,
    Disarm,
    FetchTruth,
    PublishTruth,
    Pull,
    ReadStorage,
    Release,
    Resign,
    StartLending,
)
from coldstart.events import OfferReceived, Timer
from coldstart.phases import saying
from coldstart.phases.states import (
    Abandoning,
    Checking,
    Discovering,
    Failed,
    Failure,
    Gone,
    Handshaking,
    Journey,
    LoadFailing,
    Loading,
    Move,
    Publishing,
    Serving,
    Transferring,
    Waiting,
)
from coldstart.plan import Pace
from coldstart.ports import Advert


def spent(journey: Journey, since: float, at: float) -> Journey:
    """The journey with the patience used up between ``since`` and ``at`` taken off."""
    return replace(journey, patience=max(0.0, journey.patience - (at - since)))


def detour(journey: Journey, reason: str) -> Journey:
    """The journey with the reason why a path was left noted."""
    if reason in journey.detours:
        return journey
    return replace(journey, detours=(*journey.detours, reason))


def seek(journey: Journey, at: float) -> Move:
    """Look for a source, as long as there is patience for it and our group has not decided for storage."""
    if journey.accord is not None and journey.accord.storage is not None:
        return load(detour(journey, str(journey.accord.storage)), leading=False)
    if journey.patience <= 0:
        return load(detour(journey, "patience spent"), leading=False)
    if journey.followed >= journey.limits.follow:
        return load(detour(journey, "the loader took too long"), leading=False)
    journey = replace(journey, attempt=journey.attempt + 1)
    return Discovering(journey, since=at), (
        ClaimSource(journey.attempt, journey.excluded, journey.failed),
        Arm(Timer.PATIENCE, journey.patience),
    )


def wait(journey: Journey, leader: str, since: float, at: float) -> Move:
    """Wait for the leader's weights, or for a free slot. Following costs no patience, but has its limit.

    The claims in between are part of it: on a slow bus they take longer than the waiting.
    """
    if leader:
        return Waiting(journey, leader, since=since, answered=at), (
            Disarm(Timer.PATIENCE),
            Arm(Timer.RETRY, journey.limits.retry),
        )
    return Waiting(journey, leader, since=since, answered=at), (Arm(Timer.RETRY, journey.limits.retry),)


def shake(journey: Journey, source: Advert, root: str, since: float) -> Move:
    """Wait for the source's offer, and get the truth meanwhile."""
    known = journey.fetched == root
    journey = replace(journey, tries=journey.tries + 1, root=root)
    fetch = () if known else (FetchTruth(journey.attempt, root),)
    return Handshaking(journey, source, since, truth=known), (
        *fetch,
        Arm(Timer.ANSWER, journey.limits.answer),
    )


def pull(journey: Journey, source: Advert, offer: OfferReceived, since: float, at: float) -> Move:
    """Fetch what is missing from the source."""
    journey, pace = spent(journey, since, at), Pace.begun(at)
    return Transferring(journey, source, pace, len(journey.verified), offer.transport), (
        Disarm(Timer.PATIENCE),
        Disarm(Timer.ANSWER),
        Pull(journey.attempt, source, offer.transport, offer.ticket, offer.number, journey.missing),
        watch(journey, pace),
    )


def watch(journey: Journey, pace: Pace) -> Arm:
    """The stall clock of a transfer: set anew, but never beyond what patience is left."""
    return Arm(Timer.STALL, min(journey.limits.stall, pace.tolerance(journey.patience)))


def abandon(state: Transferring, reason: str) -> Move:
    """End the pull; go on when it is quiet."""
    journey = state.journey
    return Abandoning(journey, state.source, state.pace, state.had, reason), (
        Abandon(journey.attempt),
        Disarm(Timer.STALL),
        Arm(Timer.QUIET, journey.limits.quiet),
    )


def lose(state: Transferring | Abandoning, at: float) -> Journey:
    """The journey when a transfer has ended early: what it cost beyond its verified chunks is patience."""
    journey = state.journey
    kept = (len(journey.verified) - state.had) * journey.chunk_bytes
    lost = state.pace.lost(kept, journey.limits.floor, at)
    return replace(journey, patience=max(0.0, journey.patience - lost))


def leave_transfer(state: Transferring, reason: str, at: float) -> Move:
    """The transfer failed: where nothing had landed, its transport may be to blame, and the source has others."""
    journey = lose(state, at)
    enough = journey.tries >= journey.limits.sources
    if enough or state.pace.landed or not _others(journey, state.source, state.transport):
        return leave_source(journey, state.source, reason, at)
    journey = replace(journey, failed=(*journey.failed, state.transport))
    journey = detour(journey, f"{state.source.worker}: {reason} over {state.transport}")
    after, effects = seek(journey, at)
    return after, (Release(state.journey.attempt, state.source.worker, reason), *effects)


def _others(journey: Journey, source: Advert, transport: str) -> bool:
    """Whether the source can be read over another transport of ours than ``transport``.

    A source that offers what we never asked for is itself to blame.
    """
    if transport not in journey.transports:
        return False
    left = set(journey.transports) - {transport, *journey.failed}
    return bool(left.intersection(source.transports))


def leave_source(journey: Journey, source: Advert, reason: str, at: float) -> Move:
    """The source is no use: give its slot back and try the next one, or storage when enough failed.

    A source that was left is not asked again.
    """
    release = Release(journey.attempt, source.worker, reason)
    journey = leaving(journey, source, reason)
    enough = journey.tries >= journey.limits.sources
    state, effects = load(journey, leading=False) if enough else seek(journey, at)
    return state, (release, *effects)


def leaving(journey: Journey, source: Advert, reason: str) -> Journey:
    """The journey without ``source`` among those that may be asked; its failed transports may serve with others."""
    journey = replace(detour(journey, f"{source.worker}: {reason}"), failed=())
    if source.worker in journey.excluded:
        return journey
    return replace(journey, excluded=(*journey.excluded, source.worker))


def load(journey: Journey, *, leading: bool) -> Move:
    """Read from storage what is still missing."""
    journey, votes = saying.storage(journey, "elected to read storage" if leading else "reads storage")
    journey = replace(journey, attempt=journey.attempt + 1)
    return Loading(journey, leading), (
        *votes,
        Disarm(Timer.PATIENCE),
        Disarm(Timer.RETRY),
        Disarm(Timer.ANSWER),
        ReadStorage(journey.attempt, journey.missing, journey.root, leading),
        Arm(Timer.STALL, journey.limits.storage_stall if journey.partial else journey.limits.whole_load),
    )


def stop_load(journey: Journey, failure: Failure, reason: str) -> Move:
    """End the storage read; fail when it is quiet."""
    return LoadFailing(journey, failure, reason), (
        Abandon(journey.attempt),
        Disarm(Timer.STALL),
        Arm(Timer.QUIET, journey.limits.quiet),
    )


def publish(journey: Journey) -> Move:
    """Everything came from storage and nobody published truth before: publish ours."""
    return Publishing(journey), (
        Disarm(Timer.STALL),
        PublishTruth(journey.attempt),
        Arm(Timer.CHECK, journey.limits.check),
    )


def check(journey: Journey, source: Advert | None) -> Move:
    """All digests are right: see whether the module is, too."""
    return Checking(journey, source), (
        Disarm(Timer.STALL),
        Check(journey.attempt, source),
        Arm(Timer.CHECK, journey.limits.check),
    )


def serve(journey: Journey) -> Move:
    """Serve, and lend to others."""
    return Serving(journey), (Disarm(Timer.CHECK), StartLending())


def fail(journey: Journey, failure: Failure, reason: str) -> Move:
    """No path is left."""
    journey, votes = saying.over(detour(journey, reason), reason)
    return Failed(journey, failure, reason), (
        *votes,
        Disarm(Timer.CHECK),
        Disarm(Timer.QUIET),
        Disarm(Timer.PATIENCE),
        Resign(),
    )


def leave(journey: Journey, source: Advert | None) -> Move:
    """The host does not want to start any more."""
    release = () if source is None else (Release(journey.attempt, source.worker, "cancelled"),)
    journey, votes = saying.over(journey, "asked to leave")
    return Gone(journey), (*votes, Abandon(journey.attempt), *release, Resign())
