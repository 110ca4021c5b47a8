"""Whatever is progress sets the stall clock anew: a transfer or a read ends only where nothing at all goes on."""

from __future__ import annotations

import pytest

from coldstart import events
from coldstart.effects import Arm
from coldstart.events import Event, Timer
from coldstart.machine import initial, step
from coldstart.phases.states import Loading, State, Transferring
from coldstart.plan import Chunks, Limits
from coldstart.ports import Advert

LIMITS = Limits(stall=2.0, storage_stall=30.0)
CHUNKS = 3
SOURCE = Advert("a", "a.1", "1", 1, "aa", 2, 1, CHUNKS, ("tcp",), "127.0.0.1", "cpu")
STARTED = events.Started(CHUNKS, chunk_bytes=10, transports=("tcp",))


def after(*happened: Event) -> State:
    state = initial(LIMITS)
    for event in happened:
        state, _ = step(state, event, 1.0)
    return state


def transferring(have: Chunks | None) -> State:
    offer = events.OfferReceived(1, "tcp", b"t", 7, have)
    return after(STARTED, events.SourceClaimed(1, SOURCE, "root"), events.TruthReceived(1), offer)


PROGRESS: tuple[Event, ...] = (
    events.BytesLanded(1, 10),
    events.ChunkVerified(1, 0),  # digests that come after the last byte, too
)


@pytest.mark.parametrize("event", PROGRESS, ids=lambda event: type(event).__name__)
def test_in_a_transfer(event: Event) -> None:
    state = transferring(None)
    assert isinstance(state, Transferring)
    state, asked = step(state, event, 1.5)
    assert Arm(Timer.STALL, LIMITS.stall) in asked


def test_while_a_source_has_nothing_more_to_give_its_word_that_it_goes_on_is_progress() -> None:
    have = Chunks.of([0])
    state, _ = step(transferring(have), events.ChunkVerified(1, 0), 1.2)
    state, _ = step(state, events.PullEnded(1), 1.3)
    assert isinstance(state, Transferring)
    _, asked = step(state, events.SourceProgressed(1, have), 1.5)
    assert [effect.seconds for effect in asked if isinstance(effect, Arm) and effect.timer is Timer.STALL] == [3.0]


@pytest.mark.parametrize(
    "event", [events.BytesLanded(2, 10), events.ChunkVerified(2, 0)], ids=lambda event: type(event).__name__
)
def test_in_a_read(event: Event) -> None:
    state = after(STARTED, events.LoaderElected(1))
    assert isinstance(state, Loading)
    _, asked = step(state, event, 1.5)
    assert Arm(Timer.STALL, LIMITS.storage_stall) in asked
