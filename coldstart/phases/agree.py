"""AGREE: where a rank waits for its group, and what the group's verdicts mean in every state.

Decides that nobody pulls before every rank has a source, that all read storage when one has to, and that
nobody serves before all could. When the sources of one rank run out later, the group's path is storage for
all: what is verified stays, and a transfer that goes well goes on, but nobody looks for another source.
The questions are in ``coldstart.group``; they are asked of the store by ``voting.py``. A worker without a
group never comes here.

A verdict is waited for as long as a loader is followed. A rank that the store does not answer goes on
alone, after as long as it takes the others to count it as a no: to storage, and into service.
"""

from __future__ import annotations

from msgspec.structs import replace

from coldstart.effects import Abandon, Arm, Disarm, Release
from coldstart.events import (
    DrainRequested,
    Expired,
    GroupEvent,
    GroupHeard,
    GroupLost,
    OfferReceived,
    OfferRefused,
    SourceProgressed,
    Timer,
)
from coldstart.group import PATH, READY, Verdict
from coldstart.phases import groups, moves, saying
from coldstart.phases.journey import Journey
from coldstart.phases.states import (
    Abandoning,
    Agreeing,
    Checking,
    Confirming,
    Discovering,
    Draining,
    Failed,
    Failure,
    Gone,
    Handshaking,
    Move,
    Page,
    Publishing,
    Serving,
    State,
    Transferring,
    Waiting,
    further_of,
)
from coldstart.ports import Advert


def before_pull(state: Handshaking, at: float) -> Move:
    """Source and truth are here: pull, in a group as soon as every rank has a source."""
    journey, accord, offer = state.journey, state.journey.accord, state.offer
    assert offer is not None
    if accord is None or accord.verdict(PATH) is not None:
        return moves.pull(journey, state.source, offer, state.since, at, state.part)
    journey, votes = saying.say(moves.spent(journey, state.since, at), PATH, True)
    return Agreeing(journey, state.source, at, offer, part=state.part), (
        *votes,
        Disarm(Timer.PATIENCE),
        Arm(Timer.ANSWER, journey.limits.answer),
        Arm(Timer.GROUP, journey.limits.follow),
    )


def before_serve(journey: Journey, at: float) -> Move:
    """Everything here is sound: serve, in a group as soon as every rank could."""
    if journey.accord is None:
        return moves.serve(journey)
    verdict = journey.accord.verdict(READY)
    if verdict is not None and verdict.yes:
        return moves.serve(journey)
    journey, votes = saying.sound(journey)
    return Confirming(journey, at), (*votes, Disarm(Timer.CHECK), Arm(Timer.GROUP, journey.limits.follow))


def told(state: State, event: GroupEvent, at: float) -> Move:
    """News of the group, in any state."""
    match event:
        case GroupHeard(verdicts=verdicts):
            return _heard(state, verdicts, at)
        case GroupLost(reason=reason):
            return _lost(state, reason, at)
        case _:
            raise AssertionError(f"not news of a group: {event}")


def _heard(state: State, verdicts: tuple[Verdict, ...], at: float) -> Move:
    accord = state.journey.accord
    if accord is None or isinstance(state, Failed | Gone):
        return state, ()
    accord = accord.with_verdicts(verdicts)
    state = replace(state, journey=replace(state.journey, accord=accord))
    path, ready, storage = accord.verdict(PATH), accord.verdict(READY), accord.storage
    if ready is not None and not ready.yes and not isinstance(state, Serving | Draining):
        return _fail(_waited(state, at), ready)
    match state:
        case Agreeing() if path is not None:
            return _go_on(_waited(state, at), path, at)
        case Confirming() if ready is not None:
            return _serve(_waited(state, at).journey)
        case Discovering() | Waiting() | Handshaking() if storage is not None:
            return _read_storage(_followed(state, at), str(storage))
        case _:
            return state, ()


def _followed(state: State, at: float) -> State:
    """What a rank waited for a loader is not held against it."""
    if not isinstance(state, Waiting) or not state.leader:
        return state
    return replace(state, journey=replace(state.journey, followed=state.journey.followed + at - state.since))


def _go_on(state: State, path: Verdict, at: float) -> Move:
    """The path is decided for all ranks."""
    assert isinstance(state, Agreeing)
    if not path.yes:
        return _read_storage(state, str(path))
    if state.source is not None and state.offer is not None:
        after, effects = moves.pull(state.journey, state.source, state.offer, at, at, state.part)
    else:
        after, effects = moves.seek(state.journey, at)
    return after, (Disarm(Timer.GROUP), *effects)


def _read_storage(state: State, reason: str) -> Move:
    after, effects = moves.load(moves.detour(state.journey, reason), leading=False)
    return after, (Disarm(Timer.GROUP), *_release(state, reason), *effects)


def _serve(journey: Journey) -> Move:
    after, effects = moves.serve(journey)
    return after, (Disarm(Timer.GROUP), *effects)


def _fail(state: State, verdict: Verdict) -> Move:
    """Nobody of the group serves: end what is going on."""
    assert state.journey.accord is not None
    reason = f"group {state.journey.accord.group.name} does not serve: {verdict}"
    after, effects = moves.fail(state.journey, Failure.GROUP, reason)
    others = [Abandon(each.attempt) for each in further_of(state)]
    return after, (
        Abandon(state.journey.attempt),
        *others,
        *moves.end_further(state, reason),
        *_release(state, reason),
        Disarm(Timer.GROUP),
        *effects,
    )


def _lost(state: State, reason: str, at: float) -> Move:
    """The store has not answered for so long that the others count us as a no: go on alone."""
    accord = state.journey.accord
    if accord is None or not isinstance(state, Agreeing | Confirming):
        return state, ()
    journey = replace(state.journey, accord=replace(accord, alone=reason))
    alone = _waited(replace(state, journey=journey), at)
    detour = f"on without the group: {reason}"
    if isinstance(alone, Confirming):
        return _serve(moves.detour(alone.journey, detour))
    return _read_storage(alone, detour)


def _waited(state: State, at: float) -> State:
    accord = state.journey.accord
    if accord is None or not isinstance(state, Agreeing | Confirming):
        return state
    accord = replace(accord, waited=accord.waited + at - state.since)
    return replace(state, journey=replace(state.journey, accord=accord))


def _release(state: State, reason: str) -> tuple[Release, ...]:
    """Give back the slot that we have, or our place in line for one."""
    source: Advert | None = None
    match state:
        case Discovering() | Waiting():
            return (Release(state.journey.attempt, "", reason),)
        case Handshaking() | Agreeing() | Transferring() | Abandoning() | Publishing() | Checking():
            source = state.source
        case _:
            pass
    return () if source is None else (Release(state.journey.attempt, source.worker, reason),)


# ------------------------------------------------------------------------------------ while waiting


def offer_refused(state: Agreeing, event: OfferRefused, at: float) -> Move:
    """The source takes its offer back; it is no worse for that."""
    return _give_back(state, event.reason)


def source_progressed(state: Agreeing, event: SourceProgressed, at: float) -> Move:
    """It has more than when it made its offer."""
    if state.offer is None or state.offer.have is None:
        return state, ()
    return replace(state, offer=replace(state.offer, have=event.have)), ()


def agreeing_expired(state: Agreeing, event: Expired, at: float) -> Move:
    """We wait for long: the slot is for others, or, at the end, all of us read storage."""
    match event.timer:
        case Timer.ANSWER:
            return _give_back(state, "waits for its group")
        case Timer.GROUP if state.over:
            return _lost(state, "no verdict on the path", at)
        case Timer.GROUP:  # but a verdict that stands already is waited for
            journey, votes = saying.say(state.journey, PATH, False, _too_long(state.journey))
            return replace(state, journey=journey, over=True), (*votes, Arm(Timer.GROUP, journey.limits.presence))
        case _:
            return state, ()


def _give_back(state: Agreeing, reason: str) -> Move:
    """Go on waiting without a source; any may be asked then."""
    if state.source is None:
        return state, ()
    journey = replace(state.journey, tries=state.journey.tries - 1)
    given = replace(state, journey=journey, source=None, offer=None)
    return given, (*_release(state, reason), Disarm(Timer.ANSWER))


def confirming_expired(state: Confirming, event: Expired, at: float) -> Move:
    """The others take too long: none of us serves."""
    if event.timer is not Timer.GROUP:
        return state, ()
    if state.over:
        return moves.fail(_waited(state, at).journey, Failure.GROUP, _too_long(state.journey))
    journey, votes = saying.over(state.journey, _too_long(state.journey))
    return replace(state, journey=journey, over=True), (*votes, Arm(Timer.GROUP, journey.limits.presence))


def drain_requested(state: Agreeing | Confirming, event: DrainRequested, at: float) -> Move:
    left, effects = moves.leave(state.journey, state.source if isinstance(state, Agreeing) else None)
    return left, (Disarm(Timer.GROUP), *effects)


def _too_long(journey: Journey) -> str:
    return f"waited {journey.limits.follow:g} s for the other ranks"


_EARLIER = groups.CLAIM_ANSWERS | groups.ADMISSION | groups.TRUTH_ANSWERS
_NEVER = (
    groups.START
    | groups.CONNECT_ANSWERS
    | groups.MEMORY_ANSWERS
    | groups.DRAINED
    | groups.PULL_REPORTS
    | groups.CHECK_ANSWERS
)

PAGES = (
    Page(
        Agreeing,
        handled={
            OfferRefused: offer_refused,
            SourceProgressed: source_progressed,
            Expired: agreeing_expired,
            DrainRequested: drain_requested,
        },
        ignored=_EARLIER | {OfferReceived},
        illegal=_NEVER | groups.STATE_ANSWERS | groups.PUBLISH_ANSWERS,
    ),
    Page(
        Confirming,
        handled={Expired: confirming_expired, DrainRequested: drain_requested},
        ignored=_EARLIER | groups.OFFER_ANSWERS | groups.STATE_ANSWERS | groups.PUBLISH_ANSWERS,
        illegal=_NEVER,
    ),
)
