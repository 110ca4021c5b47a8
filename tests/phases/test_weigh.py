"""Where waiting is weighed against storage: when the store is asked, what its answer means, and when nobody asks."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from coldstart import effects, events
from coldstart.effects import Effect
from coldstart.events import Event, Timer
from coldstart.group import Group
from coldstart.machine import initial, step
from coldstart.phases.states import (
    STORAGE,
    Abandoning,
    Checking,
    Discovering,
    Handshaking,
    Loading,
    State,
    Transferring,
    Waiting,
)
from coldstart.phases.weigh import AGAIN, PAUSE
from coldstart.plan import Chunks, Limits
from coldstart.ports import Advert, Queue

GB = 10**9
CHUNKS = 10
QUICK, SLOW = 10.0 * GB, 0.1 * GB
STARTED = events.Started(CHUNKS, chunk_bytes=GB, storage_rate=QUICK)
"""10 GB, which take storage 1 s and a slow link 100 s."""
BUSY = Queue(ahead=3, slots=2, used=2, hosts=("there",))


def advert(worker: str, have: int = CHUNKS, rate: int = 0) -> Advert:
    return Advert(worker, f"{worker}.1", "1", 1, "aa", 2, have, CHUNKS, ("tcp",), "there", "cpu", rate=rate)


def deferred(link: float = SLOW, leader: str = "", **changes: int) -> events.ClaimDeferred:
    return events.ClaimDeferred(1, leader, queue=replace(BUSY, **changes), rate=link)


def after(
    *happened: tuple[float, Event], state: State | None = None, started: events.Started = STARTED
) -> tuple[State, tuple[Effect, ...]]:
    """The state after what happened, and the effects of the last event."""
    if state is None:
        state, _ = step(initial(Limits()), started, 0.0)
    asked: tuple[Effect, ...] = ()
    for at, event in happened:
        state, asked = step(state, event, at)
    return state, asked


def admits(asked: tuple[Effect, ...]) -> list[effects.Admit]:
    return [effect for effect in asked if isinstance(effect, effects.Admit)]


def decision(state: State) -> str:
    return state.journey.choice.decision if state.journey.choice is not None else ""


# -------------------------------------------------------------------------------------------- in line


def test_a_line_for_slow_sources_is_left_for_storage_once_the_store_admits_us() -> None:
    state, asked = after((0.1, deferred()))
    assert isinstance(state, Waiting)
    (admit,) = admits(asked)
    assert (admit.attempt, admit.most) == (1, 40)
    assert admit.seconds > 100
    state, asked = after((0.2, events.StorageOpened(1, 0)), state=state)
    assert isinstance(state, Loading)
    assert not state.leading
    assert effects.Release(1, "", "waiting would take 100 s, storage 1 s") in asked
    assert effects.ReadStorage(2, Chunks.first(CHUNKS), "", leading=False) in asked
    assert state.journey.detours == ("waiting would take 100 s, storage 1 s",)


def test_who_is_not_admitted_stands_in_line_and_asks_again_after_a_while() -> None:
    state, _ = after((0.1, deferred()), (0.2, events.StorageRefused(1, 40)))
    assert isinstance(state, Waiting)
    assert (decision(state), state.journey.choice and state.journey.choice.storage) == ("full", 41.0)
    state, asked = after((1.0, deferred()), state=state)
    assert not admits(asked)
    _, asked = after((0.1 + PAUSE, deferred()), state=state)
    assert admits(asked)


def test_nobody_asks_while_as_many_read_as_make_it_worth_it() -> None:
    state, asked = after((0.1, deferred(readers=40)))
    assert not admits(asked)
    assert decision(state) == "full"


def test_nobody_asks_twice_before_there_is_an_answer() -> None:
    _, asked = after((0.1, deferred()), (1.1, deferred()))
    assert not admits(asked)


def test_a_line_that_stands_still_is_left_although_the_link_is_quick() -> None:
    state, asked = after((0.0, deferred(QUICK)), (1.0, deferred(QUICK)))
    assert (decision(state), admits(asked)) == ("wait", [])
    _, asked = after((3.0, deferred(QUICK)), state=state)
    assert [each.most for each in admits(asked)] == [5], "3 ahead and none gone in 3 s: 12 s, and 1 s for the bytes"


def test_a_line_that_moves_is_worth_waiting_in() -> None:
    state, asked = after((0.0, deferred(QUICK, ahead=30)), (3.0, deferred(QUICK, ahead=0)))
    assert (decision(state), admits(asked)) == ("wait", [])
    assert state.journey.choice is not None
    assert state.journey.choice.basis[2:4] == ("0 ahead in line", "30 places in 3 s")


def test_rates_of_those_that_received_count_where_no_link_was_measured() -> None:
    state, asked = after((0.1, deferred(0.0, rate=round(SLOW))))
    assert admits(asked)
    assert state.journey.choice is not None
    assert state.journey.choice.basis[1] == "0.1 GB/s (as others received)"


@pytest.mark.parametrize(
    "told",
    [
        deferred(leader="leader"),
        events.ClaimDeferred(1, "", rate=SLOW),
        deferred(link=0.0),
    ],
)
def test_without_a_complete_source_or_a_rate_today_is_as_before(told: Event) -> None:
    state, asked = after((0.1, told))
    assert isinstance(state, Waiting)
    assert (decision(state), admits(asked)) == ("", [])


def test_without_a_rate_of_storage_nothing_is_weighed() -> None:
    for told in (deferred(), events.SourceClaimed(1, advert("a"), "root", rate=SLOW)):
        state, asked = after((0.1, told), started=replace(STARTED, storage_rate=0.0))
        assert (decision(state), admits(asked)) == ("", [])


def test_a_margin_of_zero_means_never() -> None:
    state, _ = step(initial(Limits(margin=0.0)), STARTED, 0.0)
    state, asked = after((0.1, deferred()), state=state)
    assert (decision(state), admits(asked)) == ("", [])


def test_a_rank_of_a_group_weighs_nothing() -> None:
    state, _ = step(initial(Limits(), Group("run", 2, 0)), STARTED, 0.0)
    for told in (deferred(), events.SourceClaimed(1, advert("a"), "root", rate=SLOW)):
        after_it, asked = after((0.1, told), state=state)
        assert (decision(after_it), admits(asked)) == ("", [])


# ---------------------------------------------------------------------------------------- with a source


def test_a_source_behind_a_slow_link_is_left_for_storage() -> None:
    state, asked = after((0.1, events.SourceClaimed(1, advert("a"), "root", rate=SLOW)))
    assert isinstance(state, Handshaking)
    assert admits(asked)
    state, asked = after((0.2, events.StorageOpened(1, 2)), state=state)
    assert isinstance(state, Loading)
    assert effects.Release(1, "a", "waiting would take 100 s, storage 3 s") in asked
    assert effects.ReadStorage(2, Chunks.first(CHUNKS), "root", leading=False) in asked


def test_what_the_source_received_at_counts_where_its_link_was_not_measured() -> None:
    _, asked = after((0.1, events.SourceClaimed(1, advert("a", rate=round(SLOW)), "root")))
    assert admits(asked)


def test_before_a_truth_is_published_one_reads_storage_and_the_others_wait() -> None:
    state, asked = after((0.1, events.SourceClaimed(1, advert("a", have=1), "", rate=SLOW)))
    assert isinstance(state, Handshaking)
    assert (decision(state), admits(asked)) == ("", [])


def test_who_is_not_admitted_goes_on_with_its_source() -> None:
    state, asked = after(
        (0.1, events.SourceClaimed(1, advert("a"), "root", rate=SLOW)), (0.2, events.StorageRefused(1, 99))
    )
    assert isinstance(state, Handshaking)
    assert (decision(state), asked) == ("full", ())


def transferring(*chunks: tuple[float, int]) -> tuple[State, tuple[Effect, ...]]:
    """A transfer that began at 0 s, after these chunks have come; nobody knew what the link gives."""
    landed = [
        (at, event) for at, chunk in chunks for event in (events.ChunkVerified(1, chunk), events.BytesLanded(1, GB))
    ]
    begun = (
        (0.0, events.SourceClaimed(1, advert("a"), "root")),
        (0.0, events.TruthReceived(1)),
        (0.0, events.OfferReceived(1, "tcp", b"", 1)),
    )
    return after(*begun, *landed)


def test_a_transfer_that_turns_out_slow_is_left_for_storage_and_what_came_is_kept() -> None:
    state, asked = transferring((1.0, 0), (1.9, 1))
    assert isinstance(state, Transferring)
    assert not admits(asked), "it has not been watched for long"
    state, asked = transferring((1.0, 0), (3.0, 1))
    assert admits(asked)
    state, asked = after((3.1, events.StorageOpened(1, 0)), state=state)
    assert isinstance(state, Abandoning)
    assert effects.Abandon(1) in asked
    state, asked = after((3.2, events.PullEnded(1, "abandoned")), state=state)
    assert isinstance(state, Loading)
    assert effects.ReadStorage(2, Chunks.of(range(2, CHUNKS)), "root", leading=False) in asked
    assert dict(state.journey.origins) == {"a": Chunks.first(2)}


def test_a_transfer_is_looked_at_now_and_then_only() -> None:
    state, _ = transferring((1.0, 0), (3.0, 1))
    state, _ = after((3.1, events.StorageRefused(1, 9)), state=state)
    again, _ = after((3.0 + AGAIN / 2, events.BytesLanded(1, 1)), state=state)
    assert again.journey.choice == state.journey.choice


def test_an_answer_that_comes_late_changes_nothing_and_the_place_is_given_back() -> None:
    state, _ = transferring((1.0, 0), (3.0, 1))
    answers = {events.StorageOpened(1, 0): (effects.LeaveStorage(),), events.StorageRefused(1, 5): ()}
    for answer, asked in answers.items():
        broken, _ = after((3.1, events.PullEnded(1, "closed")), state=state)
        assert isinstance(broken, Discovering)
        assert after((3.2, answer), state=broken) == (broken, asked)
        drained, _ = after((3.1, events.DrainRequested()), state=state)
        assert after((3.2, answer), state=drained) == (drained, asked)
        abandoned, _ = after((3.1, events.ChunkCorrupted(1, 2)), state=state)
        assert isinstance(abandoned, Abandoning)
        assert after((3.2, answer), state=abandoned) == (abandoned, asked)


def test_who_was_never_answered_asks_again_in_the_next_attempt() -> None:
    state, _ = transferring((1.0, 0), (3.0, 1))
    state, _ = after((3.1, events.PullEnded(1, "closed")), state=state)
    _, asked = after((3.2, events.SourceClaimed(2, advert("b"), "root", rate=SLOW)), state=state)
    assert [each.attempt for each in admits(asked)] == [2]


# ------------------------------------------------------------------------------------------- afterwards


def test_who_has_read_makes_room_and_who_was_not_admitted_says_nothing() -> None:
    state, _ = after((0.1, deferred()), (0.2, events.StorageOpened(1, 0)), (0.3, events.TruthReceived(2, "root")))
    state, asked = after(
        *((1.0, events.ChunkVerified(2, chunk)) for chunk in range(CHUNKS)), (1.0, events.PullEnded(2)), state=state
    )
    assert isinstance(state, Checking)
    assert effects.LeaveStorage() in asked
    assert dict(state.journey.origins) == {STORAGE: Chunks.first(CHUNKS)}
    state, _ = after((0.1, events.LoaderElected(1)))
    _, asked = after((1.0, events.PullEnded(2, "broken")), state=state)
    assert effects.LeaveStorage() not in asked


def test_a_retry_keeps_what_is_known_of_the_line() -> None:
    state, _ = after((0.5, deferred(QUICK)), (1.5, events.Expired(Timer.RETRY)), (1.6, deferred(QUICK, ahead=2)))
    assert isinstance(state, Waiting)
    assert state.spot is not None
    assert (state.spot.at, state.spot.ahead) == (0.5, 3)
