"""Whatever path is left, the reason stands among the detours, with the name of who was left."""

from __future__ import annotations

import pytest

from coldstart import events
from coldstart.events import Event, Timer
from coldstart.machine import initial, step
from coldstart.phases.states import State
from coldstart.plan import Limits
from coldstart.ports import Advert

CHUNKS = 2
LIMITS = Limits()
STARTED = events.Started(CHUNKS, chunk_bytes=10, transports=("fast", "tcp"), connecting=("fast",))
SOURCE = Advert("a", "a.1", "1", 1, "aa", 2, CHUNKS, CHUNKS, ("fast", "tcp"), "127.0.0.1", "cpu")
GRANTED = (STARTED, events.SourceClaimed(1, SOURCE, "root"), events.TruthReceived(1))
AGREED = (*GRANTED, events.OfferReceived(1, "tcp", b"t", 7))
LANDED = (*AGREED, events.BytesLanded(1, 10))
LED = (STARTED, events.LoaderElected(1), events.ChunkVerified(2, 0), events.ChunkVerified(2, 1), events.PullEnded(2))
CHECKED = (*AGREED, events.ChunkVerified(1, 0), events.ChunkVerified(1, 1), events.PullEnded(1))

COURSES: dict[str, tuple[Event, ...]] = {
    "no bus": (STARTED, events.ClaimFailed(1, "no bus")),
    "no source within the budget": (STARTED, events.Expired(Timer.PATIENCE)),
    "every source stayed busy": (STARTED, events.ClaimDeferred(1, ""), events.Expired(Timer.PATIENCE)),
    "a: no answer": (*GRANTED[:2], events.Expired(Timer.ANSWER)),
    "a: refused (busy)": (*GRANTED, events.OfferRefused(1, "busy")),
    "a: truth is malformed": (*GRANTED[:2], events.TruthMissed(1, "truth is malformed")),
    "a: unreachable over fast": (
        *GRANTED, events.OfferReceived(1, "fast", b"t", 7), events.ConnectFailed(1, "unreachable"),
    ),
    "a: no connection over fast": (
        *GRANTED, events.OfferReceived(1, "fast", b"t", 7), events.Expired(Timer.ANSWER),
    ),
    "a: reset over tcp": (*AGREED, events.PullEnded(1, "reset")),
    "a: reset": (*LANDED, events.PullEnded(1, "reset")),
    "a: ended early": (*LANDED, events.PullEnded(1)),
    "a: stalled": (*LANDED, events.Expired(Timer.STALL), events.PullEnded(1, "abandoned")),
    "a: chunk 1 has wrong bytes": (*LANDED, events.ChunkCorrupted(1, 1), events.PullEnded(1, "abandoned")),
    "a: revoked (drained)": (*LANDED, events.OfferRefused(1, "drained"), events.PullEnded(1, "abandoned")),
    "a: reset, memory quarantined": (*LANDED, events.PullEnded(1, "reset", quiet=False)),
    "the store is down": (*LED, events.TruthUnpublished(2, "the store is down")),
    "a: generation 2": (*CHECKED, events.SourceChanged(1, "a", "generation 2")),
    "the truth is gone": (STARTED, events.LoaderElected(1, "root"), events.TruthMissed(2, "the truth is gone")),
    "no file": (STARTED, events.LoaderElected(1), events.PullEnded(2, "no file")),
    "tie broken": (*CHECKED, events.CheckFailed(1, "tie broken")),
}  # fmt: skip


@pytest.mark.parametrize("reason", COURSES)
def test_it_is_said(reason: str) -> None:
    state: State = initial(LIMITS)
    at = 0.0
    for event in COURSES[reason]:
        at += LIMITS.stall if isinstance(event, events.Expired) else 0.0
        state, _ = step(state, event, at)
    assert reason in state.journey.detours
