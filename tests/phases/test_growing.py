"""Pulls that grow: more is asked for while something is on its way, and each end is of what it says."""

from __future__ import annotations

import pytest

from coldstart import effects, events
from coldstart.effects import Effect
from coldstart.events import Event
from coldstart.machine import initial, step
from coldstart.phases.states import Abandoning, Checking, Discovering, State, Transferring
from coldstart.plan import Chunks, Limits
from coldstart.ports import Advert

CHUNKS = 6
FIRST, MORE = Chunks.of([0]), Chunks.of([1, 2])
HERE = Chunks.first(3)
SOURCE = Advert("a", "a.1", "1", 1, "aa", 2, 1, CHUNKS, ("tcp",), "127.0.0.1", "cpu")


def after(state: State, *happened: Event) -> tuple[State, tuple[Effect, ...]]:
    """The state after what happened, and the effects of the last event."""
    asked: tuple[Effect, ...] = ()
    for event in happened:
        state, asked = step(state, event, 1.0)
    return state, asked


def relayed(*more: Event, root: str = "root", growing: tuple[str, ...] = ("tcp",), part: int = -1) -> State:
    """A source that has one chunk by now, which is on its way."""
    agreed: tuple[Event, ...] = (events.SourceClaimed(1, SOURCE, root, part=part),)
    agreed += (events.TruthReceived(1),) if root else ()
    offer = events.OfferReceived(1, "tcp", b"t", 7, FIRST)
    started = events.Started(CHUNKS, chunk_bytes=10, transports=("tcp",), growing=growing)
    return after(initial(Limits()), started, *agreed, offer, *more)[0]


def pulls(asked: tuple[Effect, ...]) -> list[Chunks]:
    return [effect.chunks for effect in asked if isinstance(effect, effects.Pull)]


def transferring(state: State, pulling: Chunks) -> Transferring:
    assert isinstance(state, Transferring)
    assert state.pulling == pulling
    return state


def test_more_is_asked_for_at_once() -> None:
    state, asked = after(relayed(), events.SourceProgressed(1, HERE))
    transferring(state, HERE)
    assert pulls(asked) == [MORE]
    _, asked = after(state, events.SourceProgressed(1, HERE))
    assert not asked, "each chunk is asked for once"


def test_a_transport_that_cannot_is_asked_when_the_pull_has_ended() -> None:
    state, asked = after(relayed(growing=("other",)), events.SourceProgressed(1, HERE))
    transferring(state, FIRST)
    assert not asked
    state, asked = after(state, events.ChunkVerified(1, 0), events.PullEnded(1))
    assert pulls(asked) == [MORE]


def test_a_pull_ends_for_what_it_was_asked_for_and_no_more() -> None:
    state = relayed(events.SourceProgressed(1, HERE), events.ChunkVerified(1, 0))
    state, asked = after(state, events.PullEnded(1, chunks=FIRST))
    transferring(state, MORE)
    assert not pulls(asked)
    state, _ = after(state, events.ChunkVerified(1, 1), events.ChunkVerified(1, 2), events.PullEnded(1, chunks=MORE))
    transferring(state, Chunks())


def test_the_last_end_leads_to_verify() -> None:
    verified = [events.ChunkVerified(1, chunk) for chunk in range(CHUNKS)]
    state = relayed(events.SourceProgressed(1, None), *verified)
    state, _ = after(state, events.PullEnded(1, chunks=FIRST))
    transferring(state, Chunks.first(CHUNKS) - FIRST)
    state, _ = after(state, events.PullEnded(1, chunks=Chunks.first(CHUNKS) - FIRST))
    assert isinstance(state, Checking)


def test_a_chunk_that_does_not_come_counts_against_the_pull_that_was_asked_for_it() -> None:
    state = relayed(events.SourceProgressed(1, HERE), events.ChunkVerified(1, 0))
    state, asked = after(state, events.PullEnded(1, chunks=MORE))
    assert isinstance(state, Abandoning)
    assert state.reason == "ended early"
    assert effects.Abandon(1) in asked
    state, _ = after(state, events.PullEnded(1, "abandoned", chunks=FIRST))
    assert isinstance(state, Discovering)


def test_chunks_without_a_digest_are_asked_for_again_when_there_is_news() -> None:
    state = relayed(events.SourceProgressed(1, HERE), events.ChunkVerified(1, 0), root="")
    state, asked = after(state, events.PullEnded(1, chunks=HERE))
    transferring(state, Chunks())
    assert not pulls(asked), "nobody has stated their digests since"
    state, asked = after(state, events.SourceProgressed(1, HERE))
    assert pulls(asked) == [MORE]


@pytest.mark.parametrize("ends", [(FIRST, MORE), (MORE, FIRST), (None,)], ids=["in order", "in any order", "at once"])
def test_nothing_goes_on_before_all_of_it_is_quiet(ends: tuple[Chunks | None, ...]) -> None:
    state = relayed(events.SourceProgressed(1, HERE))
    state, _ = after(state, events.OfferRefused(1, "drains"))
    for chunks in ends:
        assert isinstance(state, Abandoning)
        state, _ = after(state, events.PullEnded(1, "abandoned", chunks=chunks))
    assert isinstance(state, Discovering)


def test_a_second_source_is_asked_for_more_too() -> None:
    second = Advert("b", "b.1", "1", 1, "aa", 2, 1, CHUNKS, ("tcp",), "127.0.0.1", "cpu")
    offer = events.OfferReceived(-1, "tcp", b"s", 8, Chunks.of([1]))
    agreed = (events.SourceClaimed(-1, second, "root", part=1), offer)
    state, asked = after(relayed(part=0), *agreed, events.SourceProgressed(-1, Chunks.first(4)))
    assert pulls(asked) == [Chunks.of([3])], "of its own part"
    assert isinstance(state, Transferring)
    (further,) = state.further
    assert further.pulling == Chunks.of([1, 3])
    state, asked = after(state, events.ChunkVerified(-1, 1), events.PullEnded(-1, chunks=Chunks.of([1])))
    assert isinstance(state, Transferring)
    (further,) = state.further
    assert further.pulling == Chunks.of([3])
    left, asked = after(state, events.OfferRefused(-1, "drains"))
    assert effects.Abandon(-1) in asked
    left, _ = after(left, events.PullEnded(-1, "abandoned", chunks=Chunks.of([3])))
    assert isinstance(left, Transferring)
    assert "b: refused (drains)" in left.journey.detours
