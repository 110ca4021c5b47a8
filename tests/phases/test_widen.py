"""A lone joiner gets further sources where the first one is the bottleneck, and gives them up where it is not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from coldstart import effects, events
from coldstart.effects import Effect
from coldstart.events import Event, Timer
from coldstart.group import Group
from coldstart.machine import initial, step
from coldstart.phases.states import Abandoning, Discovering, State, Transferring
from coldstart.plan import Chunks, Limits
from coldstart.policies import AtOnce, Flow, one_source, source_bound
from coldstart.portions import NARROW, SHARE
from coldstart.ports import Advert

CHUNKS, SIZE = 100, 10_000_000
LIMITS = Limits(floor=0.0, patience=1000.0)
FLOW = Flow(sources=1, rate=1e8, before=0.0, link=0.0, cap=0.0, left=int(1e9), watched=2.0)
SECOND = (events.SourceClaimed(-1, Advert("b", "b.1", "1", 1, "aa", 2, CHUNKS, CHUNKS, ("tcp",), "h", "cpu"), "root"),)
OFFERED = (*SECOND, events.OfferReceived(-1, "tcp", b"b", 9))


@pytest.mark.parametrize(
    ("change", "sources"),
    [
        ({}, 4),  # nobody knows what the link can do: try
        ({"link": 1.1e8}, 1),  # the link is full
        ({"link": 4e8}, 4),  # the link could do more
        ({"link": 1e8, "cap": 1e8}, 4),  # the best that was seen was the lender's limit
        ({"left": int(3e8)}, 3),  # the fourth would save a quarter of a second
        ({"left": int(1e8)}, 1),  # over before a second one pays
        ({"watched": 0.5}, 1),  # too early to tell
        ({"rate": 0.0}, 1),
        ({"sources": 2, "rate": 1.9e8, "before": 1e8, "left": int(3e8)}, 2),  # it pays; more would not
        ({"sources": 2, "rate": 1.9e8, "before": 1e8}, 4),  # so may more
        ({"sources": 2, "rate": 1.9e8, "before": 1e8, "link": 2e8}, 2),  # now the link is full
        ({"sources": 4, "rate": 3.9e8, "before": 1e8}, 4),  # the most that there are
        ({"sources": 4, "rate": 1.7e8, "before": 1e8}, 2),  # so much comes from two
        ({"sources": 3, "rate": 0.5e8, "before": 1e8}, 0),  # all worse than one
        ({"sources": 2, "rate": 1.1e8, "before": 1e8}, 1),  # both share what is slow
        ({"sources": 2, "rate": 0.5e8, "before": 1e8, "watched": 0.5}, 2),  # its connections are just being made
    ],
)
def test_the_policy(change: dict[str, float], sources: int) -> None:
    assert source_bound(replace(FLOW, **change)) == sources
    assert one_source(replace(FLOW, **change)) == 1


def after(state: State, *happened: Event, at: float) -> tuple[State, tuple[Effect, ...]]:
    """The state after what happened, and the effects of all of it."""
    asked: tuple[Effect, ...] = ()
    for event in happened:
        state, more = step(state, event, at)
        asked += more
    return state, asked


def transferring(
    at_once: AtOnce = source_bound,
    *,
    cap: int = 0,
    chunks: int = CHUNKS,
    have: Chunks | None = None,
    growing: bool = True,
) -> Transferring:
    """Everything comes from ``a``, since 0 s."""
    source = Advert("a", "a.1", "1", 1, "aa", 2, chunks, chunks, ("tcp",), "h", "cpu", cap=cap)
    names = ("tcp",) if growing else ()
    started = events.Started(chunks, chunk_bytes=SIZE, transports=("tcp",), growing=names, abortable=("tcp",))
    agreed = (events.SourceClaimed(1, source, "root", rate=1e8), events.TruthReceived(1))
    offer = events.OfferReceived(1, "tcp", b"a", 7, have)
    state, _ = after(initial(LIMITS, at_once=at_once), started, *agreed, offer, at=0.0)
    assert isinstance(state, Transferring)
    return state


def slow(state: State, seconds: float = 2.0, rate: float = 3e7) -> tuple[State, tuple[Effect, ...]]:
    """Bytes come from the first source for so long."""
    return after(state, events.BytesLanded(1, int(seconds * rate)), at=seconds)


def claims(asked: tuple[Effect, ...]) -> list[effects.ClaimSource]:
    return [effect for effect in asked if isinstance(effect, effects.ClaimSource)]


def test_a_second_source_is_sought_without_standing_in_line() -> None:
    state, asked = slow(transferring())
    (claim,) = claims(asked)
    assert (claim.attempt, claim.queue, claim.exclude) == (-1, False, ("a",))
    assert (claim.part, claim.have) == (-1, CHUNKS - 1), "nobody that still receives will do"
    _, asked = after(state, events.BytesLanded(1, 1), at=2.1)
    assert not claims(asked), "once"


def test_a_lender_that_says_that_it_is_capped_is_believed() -> None:
    assert not claims(slow(transferring(), rate=1e8)[1]), "the link is full"
    assert claims(slow(transferring(cap=100_000_000), rate=1e8)[1])


@pytest.mark.parametrize(
    "state",
    [
        transferring(one_source),
        transferring(lambda flow: 1 // 0),
        transferring(lambda flow: None),  # type: ignore[arg-type, return-value]
        transferring(chunks=8),
        transferring(have=Chunks.first(50)),
        transferring(growing=False),
    ],
    ids=["told not to", "broken policy", "policy without an answer", "few chunks", "relayed", "cannot grow"],
)
def test_there_is_none_where_it_cannot_help(state: Transferring) -> None:
    assert not claims(slow(state)[1])


def test_a_rank_of_a_group_keeps_the_source_on_which_it_has_agreed() -> None:
    state = transferring()
    accord = initial(LIMITS, Group("g", 2, 0)).journey.accord
    assert not claims(slow(replace(state, journey=replace(state.journey, accord=accord)))[1])


def test_both_are_asked_for_what_nobody_was_asked_for() -> None:
    state, _ = slow(transferring())
    before = state.journey.missing
    state, asked = after(state, *OFFERED, at=2.0)
    (pull,) = [effect for effect in asked if isinstance(effect, effects.Pull)]
    assert isinstance(state, Transferring)
    assert pull.attempt == -1
    assert not pull.chunks & state.pulling
    assert len(state.pulling) < len(before) // 2, "enough is left to be divided"


def test_a_second_source_that_is_no_quicker_is_ended_and_that_is_remembered() -> None:
    state, _ = after(slow(transferring())[0], *OFFERED, at=2.0)
    state, _ = after(state, events.BytesLanded(-1, 16_000_000), at=3.0)
    state, asked = after(state, events.BytesLanded(1, 16_000_000), at=3.1)
    assert effects.Abandon(-1) in asked
    state, asked = after(state, events.PullEnded(-1, "abandoned"), at=3.1)
    assert effects.Release(-1, "b", NARROW) in asked
    assert isinstance(state, Transferring)
    assert state.pulling == state.journey.missing, "the first one brings all that is left"
    assert state.journey.excluded == (), "it was not its fault"
    assert NARROW in state.journey.detours
    _, asked = after(state, events.BytesLanded(1, 1), at=30.0)
    assert not claims(asked)


def test_one_that_pays_is_kept() -> None:
    state, _ = after(slow(transferring())[0], *OFFERED, at=2.0)
    state, _ = after(state, events.BytesLanded(-1, 30_000_000), at=3.0)
    state, asked = after(state, events.BytesLanded(1, 30_000_000), at=3.1)
    assert effects.Abandon(-1) not in asked
    assert isinstance(state, Transferring)
    assert state.further


def source(worker: str) -> Advert:
    return Advert(worker, f"{worker}.1", "1", 1, "aa", 2, CHUNKS, CHUNKS, ("tcp",), "h", "cpu")


def several(at_once: AtOnce = source_bound) -> Transferring:
    """Four bring something since 2 s: ``a`` and three further ones, which were sought one after the other."""
    state, _ = slow(transferring(at_once))
    for number, worker in enumerate("bcd", start=1):
        state, _ = after(state, events.SourceClaimed(-number, source(worker), "root"), at=2.0)
    offers = [events.OfferReceived(-number, "tcp", b"t", 9) for number in (1, 2, 3)]
    state, _ = after(state, *offers, at=2.0)
    assert isinstance(state, Transferring)
    return state


def test_several_are_sought_one_after_the_other_and_never_the_same_twice() -> None:
    state, asked = slow(transferring())
    assert [claim.attempt for claim in claims(asked)] == [-1]
    state, asked = after(state, events.SourceClaimed(-1, source("b"), "root"), at=2.0)
    assert [(claim.attempt, claim.exclude, claim.queue) for claim in claims(asked)] == [(-2, ("a", "b"), False)]
    state, asked = after(state, events.SourceClaimed(-2, source("c"), "root"), at=2.0)
    assert [(claim.attempt, claim.exclude) for claim in claims(asked)] == [(-3, ("a", "b", "c"))]
    _, asked = after(state, events.SourceClaimed(-3, source("d"), "root"), at=2.0)
    assert not claims(asked), "four are the most"


def test_as_many_as_there_are_will_do_and_more_are_looked_for_later() -> None:
    state, _ = slow(transferring())
    state, asked = after(state, *OFFERED, events.ClaimDeferred(-2, ""), at=2.0)
    assert effects.Release(-2, "", "nobody is free") in asked
    assert isinstance(state, Transferring)
    assert [each.attempt for each in state.further] == [-1]
    both = (events.BytesLanded(-1, 90_000_000), events.BytesLanded(1, 90_000_000))
    state, asked = after(state, *both, at=5.0)
    assert not claims(asked)
    _, asked = after(state, *both, at=8.0)
    assert [claim.attempt for claim in claims(asked)] == [-3]


def test_each_of_several_is_asked_for_a_share_of_what_is_left_and_nothing_twice() -> None:
    state = several()
    asked = [state.pulling, *[each.pulling for each in state.further]]
    assert sum(map(len, asked)) == len(Chunks.of(chunk for chunks in asked for chunk in chunks))
    assert all(asked)
    most = -(-len(state.journey.missing) // (SHARE * len(asked)))
    assert [len(chunks) <= most for chunks in asked[1:]] == [True] * 3, "enough is left for whoever is quicker"


def test_as_long_as_one_is_being_sought_nobody_else_is() -> None:
    state, _ = slow(transferring())
    state, _ = after(state, events.SourceClaimed(-1, source("b"), "root"), at=2.0)
    state, _ = after(state, events.OfferReceived(-1, "tcp", b"b", 9), at=2.0)
    both = (events.BytesLanded(-1, 180_000_000), events.BytesLanded(1, 180_000_000))
    assert not claims(after(state, *both, at=8.0)[1])


def test_a_rate_is_measured_anew_when_one_has_gone() -> None:
    seen: list[Flow] = []

    def overheard(flow: Flow) -> int:
        seen.append(flow)
        return source_bound(flow)

    state: State = several(overheard)
    state, _ = after(state, *[events.BytesLanded(attempt, 40_000_000) for attempt in (-3, -2, -1, 1)], at=3.5)
    state, _ = after(state, events.PullEnded(-3, "closed"), events.ClaimDeferred(-4, ""), at=3.5)
    after(state, *[events.BytesLanded(attempt, 10_000_000) for attempt in (-2, -1, 1)], at=4.0)
    assert [(flow.sources, flow.watched, flow.rate, flow.before) for flow in seen[-2:]] == [
        (4, 1.5, 160e6 / 1.5, 3e7),
        (3, 0.5, 6e7, 3e7),
    ]


def test_when_the_first_of_several_fails_nothing_goes_on_before_all_pulls_are_quiet() -> None:
    state: State = several()
    state, asked = after(state, events.ChunkVerified(-3, 99), events.PullEnded(1, "closed"), at=3.0)
    assert {effects.Abandon(attempt) for attempt in (-1, -2, -3)} < set(asked)
    for attempt in (-2, -3, -1):
        assert isinstance(state, Abandoning)
        state, asked = after(state, events.PullEnded(attempt, "abandoned"), at=3.1)
    assert isinstance(state, Discovering)
    assert dict(state.journey.origins) == {"d": Chunks.of([99])}, "what had come is kept"
    assert state.journey.excluded == ("a",)


@pytest.mark.parametrize(
    ("rate", "kept"), [(30e6, 4), (10e6, 2), (5e6, 1)], ids=["all pay", "two would do", "none but the first"]
)
def test_of_several_the_last_are_ended_that_do_not_pay(rate: float, kept: int) -> None:
    state: State = several()
    landed = [events.BytesLanded(attempt, int(1.5 * rate)) for attempt in (-3, -2, -1, 1)]
    state, asked = after(state, *landed, at=3.5)
    ended = [effect.attempt for effect in asked if isinstance(effect, effects.Abandon)]
    assert ended == [-3, -2, -1][: 4 - kept]
    state, _ = after(state, *[events.PullEnded(attempt, "abandoned") for attempt in ended], at=3.5)
    assert isinstance(state, Transferring)
    assert 1 + len(state.further) == kept
    assert state.journey.narrow is (kept < 4)
    assert state.journey.excluded == ()
    assert not claims(after(state, events.BytesLanded(1, 1), at=30.0)[1]), "none is tried again"


def test_when_one_of_several_fails_the_others_take_over_what_it_owed() -> None:
    state = several()
    owed = state.further[1].pulling
    rest = state.journey.missing - owed
    verified = [events.ChunkVerified(1 if chunk in state.pulling else -1, chunk) for chunk in rest]
    left = (events.PullEnded(1), events.PullEnded(-1), events.PullEnded(-3))
    after_all, _ = after(state, *verified, *left, at=3.0)
    _, asked = after(after_all, events.PullEnded(-2, "closed"), at=3.0)
    pulls = [effect for effect in asked if isinstance(effect, effects.Pull)]
    assert {pull.attempt for pull in pulls} == {1, -1, -3}
    taken = [chunk for pull in pulls for chunk in pull.chunks]
    assert Chunks.of(taken) & owed == Chunks.of(taken)
    assert len(set(taken)) == len(taken) > 3
    assert {f"{pull.attempt}" for pull in pulls if pull.attempt < 0} <= {
        effect.subject for effect in asked if isinstance(effect, effects.Arm) and effect.timer is Timer.STALL
    }, "who has something to do again is watched again"


@pytest.mark.parametrize("answer", [events.ClaimDeferred(-1, ""), events.ClaimFailed(-1, "bus down")])
def test_where_nobody_has_a_free_slot_it_is_asked_again_later(answer: Event) -> None:
    state, _ = slow(transferring())
    state, _ = after(state, answer, at=2.1)
    assert isinstance(state, Transferring)
    assert (state.further, state.part) == ((), -1)
    state, asked = after(state, events.BytesLanded(1, 30_000_000), at=3.0)
    assert not claims(asked)
    _, asked = after(state, events.BytesLanded(1, 30_000_000), at=8.0)
    assert [claim.attempt for claim in claims(asked)] == [-2]
