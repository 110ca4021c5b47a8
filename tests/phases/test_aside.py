"""A second source: of the other part, beside the first one, and no reason to lose anything."""

from __future__ import annotations

import msgspec
import pytest

from coldstart import effects, events
from coldstart.effects import Arm, Disarm, Effect
from coldstart.events import Event, Timer
from coldstart.machine import initial, step
from coldstart.phases.states import Abandoning, Checking, Discovering, Gone, Replacing, State, Transferring
from coldstart.plan import Chunks, Limits
from coldstart.ports import Advert

CHUNKS = 6
EVEN, ODD = Chunks.of([0, 2, 4]), Chunks.of([1, 3, 5])
FIRST_EVEN, FIRST_ODD = Chunks.of([0, 2]), Chunks.of([1, 3])
"""The first portions of them."""
LIMITS = Limits(crowd=8, sources=3)


def advert(worker: str, have: int = CHUNKS) -> Advert:
    return Advert(worker, f"{worker}.1", "1", 1, "aa", 2, have, CHUNKS, ("tcp",), "127.0.0.1", "cpu")


def after(*happened: Event, state: State | None = None, at: float = 1.0) -> tuple[State, tuple[Effect, ...]]:
    """The state after what happened, and the effects of the last event."""
    if state is None:
        state, _ = step(initial(LIMITS), events.Started(CHUNKS), 0.0)
    asked: tuple[Effect, ...] = ()
    for event in happened:
        state, asked = step(state, event, at)
    return state, asked


def transferring(
    *more: Event, have: Chunks | None = None, root: str = "root"
) -> tuple[Transferring, tuple[Effect, ...]]:
    """Part 0 comes from ``a``; a second source is sought."""
    first = advert("a", CHUNKS if have is None else len(have))
    agreed: tuple[Event, ...] = (events.SourceClaimed(1, first, root, part=0),)
    agreed += (events.TruthReceived(1),) if root else ()
    state, asked = after(*agreed, events.OfferReceived(1, "tcp", b"a", 7, have))
    if more:
        state, asked = after(*more, state=state)
    assert isinstance(state, Transferring)
    return state, asked


SECOND = (events.SourceClaimed(-1, advert("b"), "root", part=1), events.OfferReceived(-1, "tcp", b"b", 9))


def test_in_a_crowd_one_part_is_pulled_and_a_source_of_the_other_sought() -> None:
    state, asked = transferring()
    assert effects.Pull(1, advert("a"), "tcp", b"a", FIRST_EVEN) in asked
    claim = effects.ClaimSource(-1, ("a",), share=LIMITS.share, part=1)
    assert claim in asked
    _, asked = after(events.ClaimDeferred(-1, ""), state=state)
    assert asked == (Arm(Timer.RETRY, LIMITS.retry, "-1"),)
    _, asked = after(events.Expired(Timer.RETRY, "-1"), state=state)
    assert claim in asked


def test_a_second_source_whose_advert_is_not_proven_is_left_at_once() -> None:
    unproven = msgspec.structs.replace(advert("b"), unproven="it has no seal")
    state, asked = transferring(events.SourceClaimed(-1, unproven, "root", part=1))
    assert effects.Release(-1, "b", "refused (it has no seal)") in asked
    assert state.journey.excluded == ("b",)
    assert effects.ClaimSource(-2, ("b", "a"), share=LIMITS.share, part=1) in asked


def test_the_second_source_brings_the_other_part_and_both_make_the_whole() -> None:
    state, asked = transferring(*SECOND)
    assert effects.Pull(-1, advert("b"), "tcp", b"b", FIRST_ODD) in asked
    assert effects.ShowLife(-1, advert("b"), 9) in asked
    verified = [events.ChunkVerified(1, chunk) for chunk in EVEN] + [events.ChunkVerified(-1, chunk) for chunk in ODD]
    ended, _ = after(*verified, events.PullEnded(1), state=state)
    assert isinstance(ended, Transferring), "the other pull has not returned yet"
    ended, asked = after(events.PullEnded(-1), state=ended)
    assert isinstance(ended, Checking)
    assert dict(ended.journey.origins) == {"a": EVEN, "b": ODD}
    assert effects.Check(1, advert("a")) in asked
    assert effects.Release(-1, "b", "ok") in asked


def test_chunks_are_shared_by_part_until_there_is_some_of_each() -> None:
    state, asked = transferring(*SECOND, events.ChunkVerified(1, 0))
    assert effects.Share(Chunks.of([0]), (0,)) in asked
    _, asked = after(events.ChunkVerified(-1, 1), state=state)
    assert effects.Share(Chunks.of([0, 1])) in asked


@pytest.mark.parametrize(
    "event",
    [events.PullEnded(-1, "closed"), events.PullEnded(-1)],
    ids=["failed", "ended early"],
)
def test_a_second_source_that_fails_costs_only_itself(event: Event) -> None:
    state, asked = transferring(*SECOND, events.ChunkVerified(-1, 1), event)
    assert state.pulling == FIRST_EVEN, "the first one goes on"
    (further,) = state.further
    assert further.attempt == -2
    assert effects.ClaimSource(-2, ("b", "a"), share=LIMITS.share, part=1) in asked
    assert 1 in state.journey.verified, "what it had brought is kept"


def test_the_first_source_takes_what_the_second_one_does_not_bring() -> None:
    state, asked = transferring(*SECOND, *[events.ChunkVerified(1, chunk) for chunk in EVEN], events.PullEnded(1))
    assert effects.Pull(1, advert("a"), "tcp", b"a", ODD - FIRST_ODD) in asked, "what nobody has been asked for"
    state, _ = after(events.ChunkVerified(1, 5), events.PullEnded(1), state=state)
    assert isinstance(state, Transferring)
    assert state.idle
    state, asked = after(events.PullEnded(-1, "closed"), state=state)
    assert effects.Pull(1, advert("a"), "tcp", b"a", FIRST_ODD) in asked, "while another one is sought"
    again = (events.SourceClaimed(-2, advert("c"), "root", part=1), events.OfferRefused(-2, "busy"))
    state, _ = after(*again, state=state)
    assert isinstance(state, Transferring)
    assert not state.further


def test_without_coordination_there_is_no_second_source() -> None:
    state, _ = transferring(events.ClaimFailed(-1, "bus down"))
    assert not state.further
    _, asked = after(*[events.ChunkVerified(1, chunk) for chunk in EVEN], events.PullEnded(1), state=state)
    assert effects.Pull(1, advert("a"), "tcp", b"a", ODD) in asked


@pytest.mark.parametrize("late", [events.ClaimFailed(-1, "no answer"), events.ClaimDeferred(-1, "")])
def test_an_answer_to_an_earlier_call_changes_nothing_once_there_is_a_source(late: Event) -> None:
    state, _ = transferring(*SECOND)
    assert after(late, state=state) == (state, ())


def test_wrong_bytes_from_the_second_source_are_told_and_its_pull_is_given_up() -> None:
    state, asked = transferring(*SECOND, events.ChunkCorrupted(-1, 3))
    assert effects.Strike(-1, advert("b"), 3) in asked
    assert effects.Abandon(-1) in asked
    state, asked = after(events.PullEnded(-1, "abandoned"), state=state)
    assert isinstance(state, Transferring)
    assert effects.Release(-1, "b", "chunk 3 has wrong bytes") in asked
    assert "b" in state.journey.excluded


@pytest.mark.parametrize(
    ("happened", "reason"),
    [
        ((events.PullEnded(-1, "closed", quiet=False),), "closed"),
        ((events.Expired(Timer.STALL, "-1"), events.Expired(Timer.QUIET, "-1")), "stalled"),
    ],
)
def test_a_second_pull_that_is_not_quiet_costs_the_memory(happened: tuple[Event, ...], reason: str) -> None:
    replaced, asked = after(*happened, state=transferring(*SECOND)[0])
    assert isinstance(replaced, Replacing)
    assert {effects.Abandon(1), effects.Release(1, "a", reason), effects.Release(-1, "b", reason)} < set(asked)


def test_when_the_first_source_fails_both_pulls_are_quiet_before_anything_goes_on() -> None:
    state, asked = transferring(*SECOND, events.ChunkVerified(-1, 1))
    left, asked = after(events.PullEnded(1, "closed"), state=state)
    assert isinstance(left, Abandoning)
    assert [attempt for attempt, _ in left.waits] == [-1]
    assert effects.Abandon(-1) in asked
    left, _ = after(events.ChunkVerified(-1, 3), state=left)
    left, asked = after(events.PullEnded(-1, "abandoned"), state=left)
    assert isinstance(left, Discovering)
    assert left.journey.verified == Chunks.of([1, 3])
    assert dict(left.journey.origins) == {"b": Chunks.of([1, 3])}


def test_a_host_that_leaves_gives_both_slots_back() -> None:
    gone, asked = after(events.DrainRequested(), state=transferring(*SECOND)[0])
    assert isinstance(gone, Gone)
    assert {effects.Abandon(1), effects.Abandon(-1)} < set(asked)
    assert {effects.Release(1, "a", "cancelled"), effects.Release(-1, "b", "cancelled")} < set(asked)
    assert Disarm(Timer.STALL, "-1") in asked


def test_a_truth_that_is_learnt_at_the_second_source_is_known() -> None:
    state, _ = transferring(have=Chunks.of([0]), root="")
    state, _ = after(events.SourceClaimed(-1, advert("b", 1), "", part=1), state=state)
    offered = events.OfferReceived(-1, "tcp", b"b", 9, Chunks.of([1]))
    state, _ = after(offered, events.TruthReceived(-1, "root"), state=state)
    assert state.journey.root == "root"


def test_a_slot_that_comes_too_late_is_given_back() -> None:
    state, _ = transferring(events.ClaimFailed(-1, "bus down"))
    _, asked = after(events.SourceClaimed(-1, advert("b"), "root", part=1), state=state)
    assert asked == (effects.Release(-1, "b", "too late"),)
