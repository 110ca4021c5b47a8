"""AGREE: when a rank waits for its group, what it says, and what the verdicts do to it."""

from __future__ import annotations

import pytest

from coldstart import effects, events
from coldstart.effects import Effect, Vote
from coldstart.events import Event, GroupHeard, GroupLost, Timer
from coldstart.group import PATH, PEERS, READY, Group, Verdict
from coldstart.machine import initial, step
from coldstart.phases.states import (
    Agreeing,
    Confirming,
    Discovering,
    Failed,
    Failure,
    Gone,
    Handshaking,
    Loading,
    Serving,
    State,
    Transferring,
    Waiting,
)
from coldstart.plan import Chunks, Limits
from coldstart.ports import Advert

LIMITS = Limits(patience=5.0, follow=60.0, presence=10.0)
GROUP = Group("run", 4, 0)
SOURCE = Advert("a", "a.1", "1", 1, "aa", 2, 1, 1, ("tcp",), "127.0.0.1", "cpu")
PATH_YES, PATH_NO = Verdict(PATH, True), Verdict(PATH, False, "3", "no source")
READY_NO = Verdict(READY, False, "3", "not heard of any more")


def play(*steps: Event, group: Group | None = GROUP) -> tuple[State, list[Effect]]:
    """The state after ``steps``, half a second apart, and all that was asked for on the way."""
    state, asked = initial(LIMITS, group), []
    for number, event in enumerate(steps):
        state, more = step(state, event, 0.5 * number)
        asked += more
    return state, asked


def votes(asked: list[Effect]) -> list[tuple[str, bool, str]]:
    return [(vote.question, vote.yes, vote.reason) for vote in asked if isinstance(vote, Vote)]


SEEKING = (events.Started(1),)
SHAKING = (*SEEKING, events.SourceClaimed(1, SOURCE, "root"))
AGREEING = (*SHAKING, events.TruthReceived(1), events.OfferReceived(1, "tcp", b"t", 7))
PULLING = (*AGREEING, GroupHeard((PATH_YES,)))
CONFIRMING = (*PULLING, events.ChunkVerified(1, 0), events.PullEnded(1), events.CheckPassed(1))
ELECTED = (*SEEKING, events.LoaderElected(1))
READ = (
    *ELECTED,
    events.ChunkVerified(2, 0),
    events.PullEnded(2),
    events.TruthPublished(2, "root"),
    events.CheckPassed(2),
)


@pytest.mark.parametrize("group", [None, Group("run", 1, 0)], ids=["none", "of one"])
def test_without_a_group_nothing_is_asked_and_nothing_is_waited_for(group: Group | None) -> None:
    pulling, asked = play(*AGREEING, group=group)
    assert isinstance(pulling, Transferring)
    served, more = play(*AGREEING, *CONFIRMING[len(PULLING) :], group=group)
    assert isinstance(served, Serving)
    assert not votes(asked + more)


def test_a_rank_with_a_source_waits_until_all_have_one() -> None:
    state, asked = play(*AGREEING)
    assert isinstance(state, Agreeing)
    assert votes(asked) == [(PATH, True, "")]
    assert not [effect for effect in asked if isinstance(effect, effects.Pull)]
    state, asked = play(*PULLING)
    assert isinstance(state, Transferring)
    assert effects.Pull(1, SOURCE, "tcp", b"t", Chunks.first(1)) in asked
    assert state.journey.patience == pytest.approx(LIMITS.patience - 1.5), "waiting is not held against it"


def test_a_rank_that_reads_storage_says_so_and_waits_for_nobody() -> None:
    state, asked = play(*ELECTED)
    assert isinstance(state, Loading)
    assert votes(asked) == [(PATH, False, "elected to read storage")]


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        (SEEKING, Discovering),
        ((*SEEKING, events.ClaimDeferred(1, "leader")), Waiting),
        (SHAKING, Handshaking),
        (AGREEING, Agreeing),
    ],
    ids=["discovering", "following", "shaking hands", "agreeing"],
)
def test_when_one_reads_storage_all_do(steps: tuple[Event, ...], kind: type[State]) -> None:
    assert isinstance(play(*steps)[0], kind)
    state, asked = play(*steps, GroupHeard((PATH_NO,)))
    assert isinstance(state, Loading)
    assert state.journey.detours[-1] == "path: no, rank 3: no source"
    released = [effect for effect in asked if isinstance(effect, effects.Release)]
    assert [each.source for each in released] == [SOURCE.worker if kind in (Handshaking, Agreeing) else ""]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (events.OfferRefused(1, "weights change"), "weights change"),
        (events.Expired(Timer.ANSWER), "waits for its group"),
    ],
    ids=["its offer was taken back", "the slot is for others"],
)
def test_a_source_that_is_given_up_meanwhile_may_be_asked_again(event: Event, reason: str) -> None:
    state, asked = play(*AGREEING, event)
    assert isinstance(state, Agreeing)
    assert effects.Release(1, "a", reason) in asked
    assert play(*AGREEING, event, event)[1] == asked, "once"
    state, asked = play(*AGREEING, event, GroupHeard((PATH_YES,)))
    assert isinstance(state, Discovering)
    assert [(each.attempt, each.exclude) for each in asked if isinstance(each, effects.ClaimSource)][-1] == (2, ())
    assert state.journey.tries == 0


def test_a_rank_whose_sources_run_out_later_makes_it_storage_for_all() -> None:
    lost = (*PULLING, events.PullEnded(1, "closed"), events.ClaimFailed(2, "bus down"))
    state, asked = play(*lost)
    assert isinstance(state, Loading)
    assert votes(asked) == [(PATH, True, ""), (PEERS, False, "bus down")]


def test_then_nobody_looks_for_another_source_but_a_transfer_goes_on() -> None:
    no = GroupHeard((Verdict(PEERS, False, "3", "closed"),))
    state, _ = play(*PULLING, no)
    assert isinstance(state, Transferring)
    assert isinstance(play(*PULLING, no, events.PullEnded(1, "closed"))[0], Loading)
    seeking = (*PULLING, events.PullEnded(1, "closed"))
    assert isinstance(play(*seeking)[0], Discovering)
    state, asked = play(*seeking, no)
    assert isinstance(state, Loading)
    assert votes(asked) == [(PATH, True, "")], "it is decided already"


def test_a_complete_rank_of_such_a_group_reads_nothing_and_tells_the_same_path() -> None:
    state, asked = play(*CONFIRMING, GroupHeard((Verdict(PEERS, False, "3", "closed"), Verdict(READY, True))))
    assert isinstance(state, Serving)
    assert not [effect for effect in asked if isinstance(effect, effects.ReadStorage)]
    assert state.journey.accord is not None
    assert state.journey.accord.path == "storage"


def test_nobody_serves_before_all_could() -> None:
    state, asked = play(*CONFIRMING)
    assert isinstance(state, Confirming)
    assert votes(asked) == [(PATH, True, ""), (PEERS, True, ""), (READY, True, "")]
    state, _ = play(*CONFIRMING, GroupHeard((Verdict(PEERS, True),)))
    assert isinstance(state, Confirming)
    state, asked = play(*CONFIRMING, GroupHeard((Verdict(PEERS, True), Verdict(READY, True))))
    assert isinstance(state, Serving)
    assert effects.StartLending() in asked
    assert state.journey.accord is not None
    assert state.journey.accord.path == "peer"
    assert state.journey.accord.waited == pytest.approx(1.0), "for the path, and to serve"


def test_a_rank_that_has_read_storage_says_so_again_where_its_first_word_got_lost() -> None:
    _, asked = play(*READ)
    assert votes(asked)[1:] == [(PEERS, False, "read from storage"), (READY, True, "")]
    _, asked = play(*ELECTED, GroupHeard((PATH_NO,)), *READ[len(ELECTED) :])
    assert votes(asked)[1:] == [(READY, True, "")]


@pytest.mark.parametrize(
    "steps", [SEEKING, SHAKING, AGREEING, PULLING, ELECTED, READ, CONFIRMING], ids=lambda steps: str(len(steps))
)
def test_when_one_is_gone_nobody_serves_and_all_say_the_same(steps: tuple[Event, ...]) -> None:
    state, asked = play(*steps, GroupHeard((READY_NO,)))
    assert isinstance(state, Failed)
    assert state.failure is Failure.GROUP
    assert state.reason == "group run does not serve: ready: no, rank 3: not heard of any more"
    assert not [vote for vote in votes(asked) if vote[:2] == (READY, False)], "it is decided already"


def test_a_rank_that_serves_goes_on_whatever_comes_later() -> None:
    state, _ = play(*CONFIRMING, GroupHeard((Verdict(READY, True),)), GroupHeard((READY_NO,)))
    assert isinstance(state, Serving)
    assert state.journey.accord is not None
    assert state.journey.accord.verdict(READY) == Verdict(READY, True), "the first word stands"


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((*CONFIRMING[:-1], events.CheckFailed(1, "tie broken")), "tie broken"),
        ((*PULLING, events.DrainRequested()), "asked to leave"),
    ],
    ids=["failed", "left"],
)
def test_a_rank_that_will_not_serve_says_why(steps: tuple[Event, ...], reason: str) -> None:
    state, asked = play(*steps)
    assert isinstance(state, Failed | Gone)
    assert votes(asked)[-1] == (READY, False, reason)


def test_the_others_are_waited_for_as_long_as_a_loader_is_followed() -> None:
    over = events.Expired(Timer.GROUP)
    assert effects.Arm(Timer.GROUP, LIMITS.follow) in play(*AGREEING)[1]
    state, asked = play(*AGREEING, over)
    assert isinstance(state, Agreeing), "a verdict may stand already"
    assert votes(asked)[-1] == (PATH, False, "waited 60 s for the other ranks")
    assert isinstance(play(*AGREEING, over, GroupHeard((PATH_YES,)))[0], Transferring)
    assert isinstance(play(*AGREEING, over, over)[0], Loading)
    state, asked = play(*CONFIRMING, over)
    assert votes(asked)[-1] == (READY, False, "waited 60 s for the other ranks")
    assert isinstance(play(*CONFIRMING, over, GroupHeard((Verdict(READY, True),)))[0], Serving)
    assert isinstance(play(*CONFIRMING, over, over)[0], Failed)


def test_a_rank_that_the_store_does_not_answer_goes_on_alone_and_says_so() -> None:
    state, asked = play(*AGREEING, GroupLost("store down"))
    assert isinstance(state, Loading)
    assert votes(asked)[-1] == (PATH, False, "on without the group: store down")
    assert effects.Release(1, "a", "on without the group: store down") in asked
    state, _ = play(*CONFIRMING, GroupLost("store down"))
    assert isinstance(state, Serving)
    assert state.journey.accord is not None
    assert state.journey.accord.alone == "store down"
    assert isinstance(play(*PULLING, GroupLost("store down"))[0], Transferring), "a transfer needs no store"


def test_reasons_are_cut_to_what_a_record_takes() -> None:
    _, asked = play(*CONFIRMING[:-1], events.CheckFailed(1, "x" * 2000))
    assert len(votes(asked)[-1][2]) == 512
