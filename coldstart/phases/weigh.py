"""Where waiting for a peer is weighed against storage, and what comes of it.

Decides at which moments an estimate is made (in line, at a grant, in a transfer that has run for a while) and when the
store is asked to admit us to storage; what is quicker is in ``coldstart.estimate``. Storage is left alone
as long as nobody has published a truth: then somebody reads it for everybody, and one reader is the rule. Ranks of
a group do not weigh: one that reads storage takes all others along.

While the store is asked, nothing waits for its answer: whoever is admitted leaves what it has by then.
"""

from __future__ import annotations

from msgspec.structs import replace

from coldstart.effects import Admit, Effect, LeaveStorage
from coldstart.estimate import WATCH, Decision, Estimate, Storage, Way, estimate, lease
from coldstart.events import ClaimDeferred, StorageOpened, StorageRefused
from coldstart.phases.journey import Journey
from coldstart.phases.states import Discovering, Spot, Transferring, Waiting
from coldstart.ports import Advert

AGAIN = 1.0
"""Seconds between two estimates in a transfer."""
PAUSE = 3.0
"""Seconds after which one that was not admitted asks again."""

Weighed = tuple[Journey, tuple[Effect, ...]]


def spot(state: Discovering | Waiting, event: ClaimDeferred, at: float) -> Spot | None:
    """Where we stood in line when that was first heard of, so that the line's pace can be told."""
    known = state.spot if isinstance(state, Waiting) else None
    if event.queue is None:
        return None
    return known if known is not None and event.queue.ahead <= known.ahead else Spot(at, event.queue.ahead)


def in_line(journey: Journey, event: ClaimDeferred, stood: Spot | None, at: float) -> Weighed:
    """The store says how the line stands."""
    queue = event.queue
    if event.leader or queue is None or stood is None:
        return journey, ()
    way = Way(
        nbytes=_missing(journey),
        rate=event.rate or queue.rate,
        measured="link" if event.rate else "as others received",
        ahead=queue.ahead,
        moved=stood.ahead - queue.ahead,
        watched=at - stood.at,
    )
    return _weigh(journey, way, queue.readers, at)


def at_source(journey: Journey, source: Advert, rate: float, at: float) -> Weighed:
    """A source is ours: what is known of the link to it is all that it can be."""
    if not journey.root:
        return journey, ()
    measured = "link" if rate else "as it received"
    return _weigh(journey, Way(_missing(journey), rate or source.rate, measured), 0, at)


def under_way(state: Transferring, at: float) -> Weighed:
    """Bytes come: their pace counts once it was watched for half as long as storage would take."""
    journey, pace = state.journey, state.pace
    if not journey.storage_rate or not journey.root or (journey.choice is not None and at < journey.choice.at + AGAIN):
        return journey, ()
    watched = at - pace.since
    if watched < max(WATCH, _storage(journey, 0).seconds / 2):
        return journey, ()
    # What has landed need not come again, although its digest may still be on its way.
    left = max(0, (journey.total - state.had) * journey.chunk_bytes - pace.landed)
    return _weigh(journey, Way(min(left, _missing(journey)), pace.rate(at), "this transfer"), 0, at)


def opened(journey: Journey, event: StorageOpened) -> Journey | None:
    """We may read storage; None where nobody thinks of it any more."""
    if journey.choice is None or not journey.choice.pending:
        return None
    return _decided(journey, journey.choice, "storage", event.readers)


def refused(journey: Journey, event: StorageRefused) -> Journey:
    """As many read storage already as make it worth it."""
    if journey.choice is None or not journey.choice.pending:
        return journey
    return _decided(journey, journey.choice, "full", event.readers)


def chosen(journey: Journey) -> str:
    """Why storage is read although there are peers; empty where it is not."""
    choice = journey.choice
    return str(choice) if choice is not None and choice.decision == "storage" else ""


def leave_storage(journey: Journey) -> tuple[Effect, ...]:
    """Make room for others, where we were admitted."""
    return (LeaveStorage(),) if chosen(journey) else ()


def _weigh(journey: Journey, way: Way, readers: int, at: float) -> Weighed:
    before = journey.choice
    # An answer to an earlier attempt is stale, and will not come here.
    pending = before is not None and before.pending and journey.asked == journey.attempt
    if journey.accord is not None or pending:
        return journey, ()
    found = estimate(way, _storage(journey, readers), journey.limits.margin, at)
    if found is None:
        return journey, ()
    if found.decision == "ask" and before is not None and before.decision == "full" and at < before.at + PAUSE:
        return journey, ()
    if found.decision != "ask":
        return replace(journey, choice=found), ()
    asked = Admit(journey.attempt, found.most, lease(found))
    return replace(journey, choice=found, asked=journey.attempt), (asked,)


def _decided(journey: Journey, choice: Estimate, decision: Decision, readers: int) -> Journey:
    shared = _storage(journey, readers).seconds
    return replace(journey, choice=replace(choice, decision=decision, storage=shared))


def _missing(journey: Journey) -> int:
    return len(journey.missing) * journey.chunk_bytes


def _storage(journey: Journey, readers: int) -> Storage:
    """A loader that brings everything at once reads what is here already, too."""
    nbytes = _missing(journey) if journey.partial else journey.total * journey.chunk_bytes
    return Storage(nbytes, journey.storage_rate, readers)
