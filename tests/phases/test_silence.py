"""When the world falls silent, whatever the state, clocks alone lead to an end: no wait is without a deadline."""

from __future__ import annotations

import pytest

from coldstart import events
from coldstart.effects import Arm, Disarm
from coldstart.events import Event, Expired, Timer
from coldstart.group import PATH, Group, Verdict
from coldstart.machine import initial, step
from coldstart.phases.states import (
    PHASE_OF,
    Abandoning,
    Agreeing,
    Checking,
    Confirming,
    Discovering,
    Draining,
    Failed,
    Gone,
    Handshaking,
    Idle,
    LoadFailing,
    Loading,
    Publishing,
    Replacing,
    Serving,
    State,
    Transferring,
    Waiting,
)
from coldstart.plan import Chunks, Limits
from coldstart.ports import Advert

CHUNKS = 2
LIMITS = Limits()
GROUP = Group("run", 2, 0)

STARTED = events.Started(CHUNKS, chunk_bytes=10, transports=("tcp",), connecting=("slow",), abortable=("tcp",))
SOURCE = Advert("a", "a.1", "1", 1, "aa", 2, CHUNKS, CHUNKS, ("tcp", "slow"), "127.0.0.1", "cpu")
GRANTED = (STARTED, events.SourceClaimed(1, SOURCE, "root"))
AGREED = (*GRANTED, events.TruthReceived(1), events.OfferReceived(1, "tcp", b"t", 7))
RECEIVED = (*AGREED, events.ChunkVerified(1, 0), events.ChunkVerified(1, 1), events.PullEnded(1))
BELATED = events.SourceClaimed(1, SOURCE, "root", part=0)
LED = (STARTED, events.LoaderElected(1))
READ = (*LED, events.ChunkVerified(2, 0), events.ChunkVerified(2, 1), events.PullEnded(2))
PATH_STANDS = events.GroupHeard((Verdict(PATH, True),))

Course = tuple[type[State], tuple[Event, ...]]
COURSES: dict[str, Course] = {
    "a claim": (Discovering, (STARTED,)),
    "in line for a slot": (Waiting, (STARTED, events.ClaimDeferred(1, ""))),
    "in line for a loader": (Waiting, (STARTED, events.ClaimDeferred(1, "leader"))),
    "an offer and the truth": (Handshaking, GRANTED),
    "the truth": (Handshaking, (*GRANTED, events.OfferReceived(1, "tcp", b"t", 7))),
    "the offer": (Handshaking, (*GRANTED, events.TruthReceived(1))),
    "a connection": (Handshaking, (*GRANTED, events.TruthReceived(1), events.OfferReceived(1, "slow", b"t", 7))),
    "the first byte": (Transferring, AGREED),
    "more bytes": (Transferring, (*AGREED, events.BytesLanded(1, 10))),
    "the last digest": (Transferring, (*AGREED, events.BytesLanded(1, 20), events.ChunkVerified(1, 0))),
    "the end of a pull": (Transferring, RECEIVED[:-1]),
    "what the source has not got itself": (
        Transferring,
        (*AGREED[:-1], events.OfferReceived(1, "tcp", b"t", 7, Chunks.of([0])), events.ChunkVerified(1, 0),
         events.PullEnded(1)),
    ),
    "a second source": (Transferring, (STARTED, BELATED, *AGREED[2:])),
    "quiet": (Abandoning, (*AGREED, events.ChunkCorrupted(1, 0))),
    "quiet after a revoke": (Abandoning, (*AGREED, events.OfferRefused(1, "drained"))),
    "other memory": (Replacing, (*AGREED, events.PullEnded(1, "broken", quiet=False))),
    "storage": (Loading, (STARTED, events.ClaimFailed(1, "no bus"))),
    "storage, for all": (Loading, LED),
    "more of storage": (Loading, (*LED, events.BytesLanded(2, 10), events.ChunkVerified(2, 0))),
    "the quiet of a read": (LoadFailing, (*LED, events.Expired(Timer.STALL))),
    "the store, with the truth": (Publishing, READ),
    "the check of what was read": (Checking, (*READ, events.TruthPublished(2, "root"))),
    "the check of what was received": (Checking, RECEIVED),
}  # fmt: skip
IN_A_GROUP: dict[str, Course] = {
    "the group's path": (Agreeing, AGREED),
    "the group's path, without a source": (Agreeing, (*AGREED, events.OfferRefused(1, "weights changed"))),
    "the group's last word": (
        Confirming,
        (*AGREED, PATH_STANDS, *RECEIVED[len(AGREED) :], events.CheckPassed(1)),
    ),
}
ENDS = (Serving, Failed, Gone)
LONGEST = sum(
    (LIMITS.follow, LIMITS.patience, LIMITS.whole_load, LIMITS.storage_stall, 2 * LIMITS.check, 2 * LIMITS.presence,
     LIMITS.follow, LIMITS.sources * LIMITS.quiet),
)  # fmt: skip


class Clocks:
    """A joiner, and the clocks that it has set."""

    def __init__(self, group: Group | None) -> None:
        self.state = initial(LIMITS, group)
        self.at = 0.0
        self._due: dict[tuple[Timer, str], float] = {}

    def happens(self, event: Event) -> None:
        if isinstance(event, Expired):
            self._due.pop((event.timer, event.subject), None)
        self.state, asked = step(self.state, event, self.at)
        for effect in asked:
            match effect:
                case Arm(timer=timer, seconds=seconds, subject=subject):
                    self._due[timer, subject] = self.at + seconds
                case Disarm(timer=timer, subject=subject):
                    self._due.pop((timer, subject), None)
                case _:
                    pass

    def next(self) -> None:
        """Wait for the first clock that runs out."""
        assert self._due, f"waits for ever in {type(self.state).__name__}"
        (timer, subject), self.at = min(self._due.items(), key=lambda due: due[1])
        self.happens(Expired(timer, subject))


@pytest.mark.parametrize(
    ("course", "group"),
    [(course, None) for course in COURSES.values()] + [(course, GROUP) for course in IN_A_GROUP.values()],
    ids=[*COURSES, *IN_A_GROUP],
)
def test_nobody_answers_any_more(course: Course, group: Group | None) -> None:
    """Whatever was waited for: it never comes, nor anything after it."""
    waiting, happened = course
    clocks = Clocks(group)
    for event in happened:
        clocks.happens(event)
    assert isinstance(clocks.state, waiting)
    while not isinstance(clocks.state, ENDS):
        clocks.next()
        assert clocks.at <= LONGEST, f"still in {type(clocks.state).__name__}"
    assert isinstance(clocks.state, Failed)
    assert clocks.state.reason


def test_every_state_in_which_something_is_waited_for_is_in_the_test_above() -> None:
    """A drain ends by the source's clock."""
    tested = {waiting for waiting, _ in (*COURSES.values(), *IN_A_GROUP.values())}
    assert set(PHASE_OF) - tested == {Idle, Draining, *ENDS}
