"""DISCOVER: truths are never mixed, bursts of changes are not answered with bursts of claims."""

from __future__ import annotations

import msgspec
import pytest

from coldstart import effects, events
from coldstart.effects import Effect
from coldstart.events import Event
from coldstart.machine import initial, step
from coldstart.phases.states import Discovering, Failed, Failure, Handshaking, Loading, Publishing, State, Waiting
from coldstart.plan import Chunks, Limits
from coldstart.ports import Advert


def advert(worker: str) -> Advert:
    return Advert(worker, f"{worker}.1", "1", 1, "aa", 2, 2, 2, ("tcp",), "127.0.0.1", "cpu")


def after(*happened: tuple[float, Event], state: State | None = None) -> tuple[State, tuple[Effect, ...]]:
    """The state after what happened, and the effects of the last event."""
    if state is None:
        state, _ = step(initial(Limits()), events.Started(2), 0.0)
    asked: tuple[Effect, ...] = ()
    for at, event in happened:
        state, asked = step(state, event, at)
    return state, asked


def left_with_a_chunk() -> State:
    """Chunk 0 is verified against the truth called ``old``; its source is gone."""
    state, _ = after(
        (0.1, events.SourceClaimed(1, advert("a"), "old")),
        (0.2, events.TruthReceived(1)),
        (0.2, events.OfferReceived(1, "tcp", b"", 1)),
        (0.3, events.ChunkVerified(1, 0)),
        (0.4, events.PullEnded(1, "closed")),
    )
    assert isinstance(state, Discovering)
    return state


def test_a_source_of_another_truth_is_a_conflict_and_gets_its_slot_back() -> None:
    claimed = events.SourceClaimed(2, advert("b"), "new")
    state, asked = after((0.5, claimed), state=left_with_a_chunk())
    assert isinstance(state, Failed)
    assert state.failure is Failure.CONFLICT
    assert "old and new" in state.reason
    assert effects.Release(2, "b", "truth conflict") in asked
    assert effects.Resign() in asked


@pytest.mark.parametrize("root", ["", "old", "new"])
def test_a_source_whose_advert_is_not_proven_is_left_at_once_whatever_else_is_told_of_it(root: str) -> None:
    unproven = msgspec.structs.replace(advert("b"), unproven="it has no seal")
    state, asked = after((0.5, events.SourceClaimed(2, unproven, root)), state=left_with_a_chunk())
    assert isinstance(state, Discovering)
    assert effects.Release(2, "b", "refused (it has no seal)") in asked
    assert "b" in state.journey.excluded
    assert state.journey.detours[-1] == "b: refused (it has no seal)"
    assert any(isinstance(effect, effects.ClaimSource) for effect in asked)


def test_a_loader_of_another_truth_is_a_conflict() -> None:
    state, asked = after((0.5, events.LoaderElected(2, "new")), state=left_with_a_chunk())
    assert isinstance(state, Failed)
    assert state.failure is Failure.CONFLICT
    assert effects.Resign() in asked


@pytest.mark.parametrize("root", ["", "old"])
def test_a_loader_that_knows_the_truth_reads_only_the_rest_and_holds_it_to_it(root: str) -> None:
    state, asked = after((0.5, events.LoaderElected(2, root)), state=left_with_a_chunk())
    assert isinstance(state, Loading)
    assert effects.ReadStorage(3, Chunks.of([1]), "old", leading=True) in asked


def test_a_truth_that_cannot_be_had_is_made_anew_from_storage() -> None:
    state, _ = after((0.5, events.LoaderElected(1, "root")), (0.6, events.TruthMissed(2, "bus down")))
    assert isinstance(state, Loading)
    assert state.journey.detours == ("bus down",)
    state, asked = after(
        (1.0, events.ChunkVerified(2, 0)),
        (1.0, events.ChunkVerified(2, 1)),
        (1.0, events.PullEnded(2)),
        state=state,
    )
    assert isinstance(state, Publishing)
    assert effects.PublishTruth(2) in asked


def test_the_offer_of_a_source_without_truth_is_ignored() -> None:
    state, asked = after((0.1, events.SourceClaimed(1, advert("a"), "")))
    assert isinstance(state, Waiting)
    assert effects.Release(1, "a", "no truth published") in asked
    assert after((0.2, events.OfferReceived(1, "tcp", b"", 1)), state=state) == (state, ())


def test_the_offer_and_the_truth_may_come_in_any_order() -> None:
    claimed = (0.1, events.SourceClaimed(1, advert("a"), "root"))
    truth, offer = (0.2, events.TruthReceived(1)), (0.2, events.OfferReceived(1, "tcp", b"", 1))
    first, _ = after(claimed, truth)
    assert isinstance(first, Handshaking)
    assert after(claimed, truth, offer) == after(claimed, offer, truth)
