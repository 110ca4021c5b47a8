"""A lone joiner gets a second source where the first one is the bottleneck, and gives it up where it is not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from coldstart import effects, events
from coldstart.effects import Effect
from coldstart.events import Event
from coldstart.group import Group
from coldstart.machine import initial, step
from coldstart.phases.states import State, Transferring
from coldstart.plan import Chunks, Limits
from coldstart.policies import AtOnce, Flow, one_source, source_bound
from coldstart.portions import NARROW
from coldstart.ports import Advert

CHUNKS, SIZE = 100, 10_000_000
LIMITS = Limits(floor=0.0, patience=1000.0)
FLOW = Flow(sources=1, rate=1e8, before=0.0, link=0.0, cap=0.0, left=int(1e9), watched=2.0)
SECOND = (events.SourceClaimed(-1, Advert("b", "b.1", "1", 1, "aa", 2, CHUNKS, CHUNKS, ("tcp",), "h", "cpu"), "root"),)
OFFERED = (*SECOND, events.OfferReceived(-1, "tcp", b"b", 9))


@pytest.mark.parametrize(
    ("change", "sources"),
    [
        ({}, 2),  # nobody knows what the link can do: try
        ({"link": 1.1e8}, 1),  # the link is full
        ({"link": 4e8}, 2),  # the link could do more
        ({"link": 1e8, "cap": 1e8}, 2),  # the best that was seen was the lender's limit
        ({"left": int(1e8)}, 1),  # over before a second one pays
        ({"watched": 0.5}, 1),  # too early to tell
        ({"rate": 0.0}, 1),
        ({"sources": 2, "rate": 1.9e8, "before": 1e8}, 2),  # it pays
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
        transferring(chunks=8),
        transferring(have=Chunks.first(50)),
        transferring(growing=False),
    ],
    ids=["told not to", "broken policy", "few chunks", "relayed", "cannot grow"],
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
    assert state.second is not None


@pytest.mark.parametrize("answer", [events.ClaimDeferred(-1, ""), events.ClaimFailed(-1, "bus down")])
def test_where_nobody_has_a_free_slot_it_is_asked_again_later(answer: Event) -> None:
    state, _ = slow(transferring())
    state, _ = after(state, answer, at=2.1)
    assert isinstance(state, Transferring)
    assert (state.second, state.part) == (None, -1)
    state, asked = after(state, events.BytesLanded(1, 30_000_000), at=3.0)
    assert not claims(asked)
    _, asked = after(state, events.BytesLanded(1, 30_000_000), at=8.0)
    assert [claim.attempt for claim in claims(asked)] == [-2]
