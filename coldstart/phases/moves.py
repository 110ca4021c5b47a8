"""How each phase is entered: the state and the effects that go with it.

The one place where a decision leads out of a phase, so that patience, slots and attempts are
accounted for once. Which event causes which move is on the phases' own pages, starting with
``discover.py``.
"""

from __future__ import annotations

from msgspec.structs import replace

from coldstart import portions
from coldstart.effects import (
    Abandon,
    Arm,
    Check,
    ClaimSource,
    Disarm,
    Effect,
    EndSharing,
    FetchTruth,
    PublishTruth,
    Pull,
    ReadStorage,
    Release,
    Resign,
    Share,
    ShowLife,
    StartLending,
)
from coldstart.events import OfferReceived, Timer
from coldstart.phases import saying, weigh
from coldstart.phases.journey import Journey
from coldstart.phases.states import (
    Abandoning,
    Checking,
    Discovering,
    Failed,
    Failure,
    Further,
    Gone,
    Handshaking,
    LoadFailing,
    Loading,
    Move,
    Publishing,
    Serving,
    Spot,
    State,
    Transferring,
    Waiting,
    further_of,
)
from coldstart.plan import Chunks, Pace, parts_in
from coldstart.portions import Brought
from coldstart.ports import PARTS, Advert

WAITING = 1.5
"""How many times the stall limit a source is waited for that has nothing more to give yet."""


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
    if weigh.chosen(journey):
        return load(journey, leading=False)
    if journey.patience <= 0:
        return load(detour(journey, "patience spent"), leading=False)
    if journey.followed >= journey.limits.follow:
        return load(detour(journey, "the loader took too long"), leading=False)
    journey = replace(journey, attempt=journey.attempt + 1)
    return Discovering(journey, since=at), (claim(journey), Arm(Timer.PATIENCE, journey.patience))


def claim(journey: Journey) -> ClaimSource:
    """Ask for a source, or, with the same attempt, keep the place in line."""
    limits = journey.limits
    have = len(journey.verified)
    return ClaimSource(journey.attempt, journey.excluded, journey.failed, have, limits.share, limits.crowd)


def seek_further(state: Transferring) -> tuple[Transferring, tuple[Effect, ...]]:
    """Look for one source more: of the part that the first one does not give, or, of several, of either in turn."""
    journey = replace(state.journey, asides=state.journey.asides + 1)
    other = Further(-journey.asides, (state.part + 1 + len(state.further)) % PARTS)
    state = replace(state, journey=journey, further=(*state.further, other))
    return state, (claim_part(state, other),)


def claim_part(state: Transferring, other: Further) -> ClaimSource:
    """Ask for it, or keep the place in line.

    Outside of a crowd only who has everything will do, as if but one chunk were missing: whoever still receives is
    there for those that have nothing yet.
    """
    journey = state.journey
    ours = [each.source.worker for each in state.further if each.source is not None]
    exclude = tuple(dict.fromkeys((*journey.excluded, state.source.worker, *ours)))
    share = journey.limits.share
    if state.alone:
        return ClaimSource(other.attempt, exclude, journey.failed, journey.total - 1, share, queue=False)
    return ClaimSource(other.attempt, exclude, journey.failed, share=share, part=other.part)


def wait(journey: Journey, leader: str, since: float, spot: Spot | None = None) -> Move:
    """Stand in line for the leader's weights, or for a free slot. Following costs no patience, but has its limit.

    The claims in between are part of it: on a slow bus they take longer than the waiting.
    """
    clock = (Disarm(Timer.PATIENCE),) if leader else ()
    return Waiting(journey, leader, since, spot), (*clock, Arm(Timer.RETRY, journey.limits.retry))


def leave_line(journey: Journey, reason: str) -> Move:
    """No source within the time that there is: storage."""
    after, effects = load(detour(journey, reason), leading=False)
    return after, (Release(journey.attempt, "", reason), *effects)


def shake(journey: Journey, source: Advert, root: str, since: float, part: int = -1) -> Move:
    """Wait for the source's offer, and get the truth meanwhile, where there is one by now."""
    root = root or journey.root
    known = not root or journey.fetched == root
    journey = replace(journey, tries=journey.tries + 1, root=root)
    fetch = () if known else (FetchTruth(journey.attempt, root),)
    return Handshaking(journey, source, since, part, truth=known), (
        *fetch,
        Disarm(Timer.RETRY),
        Arm(Timer.ANSWER, journey.limits.answer),
    )


def pull(
    journey: Journey, source: Advert, offer: OfferReceived, since: float, at: float, part: int = -1
) -> Move:
    """Fetch what is missing from the source; in a crowd only a part, and look for another one of the rest."""
    journey, pace = spent(journey, since, at), Pace.begun(at)
    had, (transport, ticket) = len(journey.verified), (offer.transport, offer.ticket)
    after = Transferring(
        journey, source, pace, had, transport, ticket, offer.have, part=part, seen=at, brought=Brought.begun(at)
    )
    sought: tuple[Effect, ...] = ()
    if part >= 0:
        after, sought = seek_further(after)
    after, effects = pull_more(after)
    return after, (
        Disarm(Timer.PATIENCE),
        Disarm(Timer.ANSWER),
        ShowLife(journey.attempt, source, offer.number),
        *effects,
        *sought,
        watch(after),
    )


def pull_more(state: Transferring) -> tuple[Transferring, tuple[Effect, ...]]:
    """Fetch what the source has by now and we have not asked for; nothing, if there is no such chunk.

    Beside what is on its way already, if the transport can, so that the link never waits for a request. Of several
    sources each is asked for a portion at a time.
    """
    if not may_pull(state.journey, state):
        return state, ()
    wanted = state.offered
    if state.further or state.widenable:
        wanted = portion_of(state, wanted, state.pulling)
    if not wanted:
        return state, ()
    pull = Pull(state.journey.attempt, state.source, state.transport, state.ticket, wanted)
    return replace(state, pulling=state.pulling | wanted), (pull,)


def portion_of(state: Transferring, offered: Chunks, pulling: Chunks) -> Chunks:
    """What of ``offered`` one of the sources is asked for now, beside what it is ``pulling``."""
    missing = state.journey.missing
    return portions.portion(offered, len(pulling & missing), len(missing), 1 + len(state.further))


def may_pull(journey: Journey, source: Transferring | Further) -> bool:
    """Whether more may be asked for there now."""
    return not source.pulling or source.transport in journey.growing


def watch(state: Transferring) -> Arm:
    """The stall clock of a transfer: set anew, but never beyond what patience is left.

    Whoever waits for a source that receives itself waits longer than that one does for its own. One that has nothing
    to do cannot stall.
    """
    if state.idle:
        return Arm(Timer.STALL, tolerance(state))
    stall = state.journey.limits.stall
    return Arm(Timer.STALL, min(stall if state.pulling else WAITING * stall, tolerance(state)))


def tolerance(state: Transferring) -> float:
    """Seconds that a transfer may still lose.

    Patience; but while the fleet's storage reader is at work, nobody can be faster than it, and it is
    followed for as long as it may be.
    """
    journey = state.journey
    if journey.root or state.have is None:
        return state.pace.tolerance(journey.patience)
    return state.pace.tolerance(journey.limits.follow - journey.followed)


def share(journey: Journey, chunks: Chunks) -> tuple[Effect, ...]:
    """Let others have ``chunks``; but a loader that brings everything at once writes over what is here."""
    if not journey.partial or not chunks:
        return ()
    return (Share(chunks, parts_in(chunks, journey.total) if journey.asides else ()),)


def abandon(state: Transferring, reason: str) -> Move:
    """End the pull, and those from further sources; go on when they are quiet."""
    journey = state.journey
    waits = [(journey.attempt, state.pulling)] if state.pulling else []
    waits += [(each.attempt, each.pulling) for each in state.further if each.pulling]
    after = Abandoning(journey, state.source, state.pace, state.had, reason, tuple(waits), state.further)
    return after, (
        *[Abandon(attempt) for attempt, _ in waits],
        *end_further(state, reason),
        Disarm(Timer.STALL),
        Arm(Timer.QUIET, journey.limits.quiet),
    )


def end_further(state: State, outcome: str) -> tuple[Effect, ...]:
    """Give the slots of all further sources back."""
    return tuple([effect for each in further_of(state) for effect in give_back(each, outcome)])


def give_back(other: Further, outcome: str) -> tuple[Effect, ...]:
    """Give a further source's slot, or a place in line, back; nothing of it is timed any more."""
    worker = other.source.worker if other.source is not None else ""
    clocks = [Disarm(timer, str(other.attempt)) for timer in (Timer.RETRY, Timer.ANSWER, Timer.STALL, Timer.QUIET)]
    return (Release(other.attempt, worker, outcome), *clocks)


def lose(state: Transferring | Abandoning, at: float) -> Journey:
    """The journey when a transfer has ended early: what it cost beyond its verified chunks is patience.

    Unless nobody knew the truth yet: then somebody who reads storage was followed.
    """
    journey = state.journey
    kept = (len(journey.verified) - state.had) * journey.chunk_bytes
    lost = state.pace.lost(kept, journey.limits.floor, at)
    if not journey.root:
        return replace(journey, followed=journey.followed + lost)
    return replace(journey, patience=max(0.0, journey.patience - lost))


def leave_transfer(state: Transferring, reason: str, at: float) -> Move:
    """The transfer failed: where nothing had landed, its transport may be to blame, and the source has others."""
    journey = lose(state, at)
    if state.pace.landed:
        return leave_source(journey, state.source, reason, at)
    return leave_transport(journey, state.source, state.transport, reason, at)


def leave_transport(journey: Journey, source: Advert, transport: str, reason: str, at: float) -> Move:
    """Over this transport nothing came: try the source's others, or the next source."""
    enough = journey.tries >= journey.limits.sources
    if enough or not _others(journey, source, transport):
        return leave_source(journey, source, reason, at)
    release = Release(journey.attempt, source.worker, reason)
    journey = replace(journey, failed=(*journey.failed, transport))
    journey = detour(journey, f"{source.worker}: {reason} over {transport}")
    after, effects = seek(journey, at)
    return after, (release, *effects)


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
    return state, (release, *share(journey, journey.verified), *effects)


def leaving(journey: Journey, source: Advert, reason: str) -> Journey:
    """The journey without ``source`` among those that may be asked; its failed transports may serve with others."""
    journey = replace(detour(journey, f"{source.worker}: {reason}"), failed=())
    if source.worker in journey.excluded:
        return journey
    return replace(journey, excluded=(*journey.excluded, source.worker))


def load(journey: Journey, *, leading: bool) -> Move:
    """Read from storage what is still missing; where it can only be loaded whole, that is written over what is here."""
    if not journey.partial:
        journey = journey.keeping(Chunks())
    journey, votes = saying.storage(journey, "elected to read storage" if leading else "reads storage")
    journey = replace(journey, attempt=journey.attempt + 1)
    return Loading(journey, leading, stated=journey.verified), (
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


def publish(journey: Journey, source: Advert | None) -> Move:
    """Everything is here and nobody has published truth: publish ours."""
    return Publishing(journey, source), (
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
        EndSharing(),
        Resign(),
    )


def leave(journey: Journey, source: Advert | None) -> Move:
    """The host does not want to start any more."""
    release = Release(journey.attempt, "" if source is None else source.worker, "cancelled")
    journey, votes = saying.over(journey, "asked to leave")
    return Gone(journey), (*votes, Abandon(journey.attempt), release, EndSharing(), Resign())
