"""Several sources of one joiner, of any speed, that may die at any step: all arrives, once, and no slot is kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldstart.phases.endgame import outruns
from coldstart.phases.states import Checking, Discovering, Transferring
from coldstart.plan import Limits
from coldstart.policies import MOST, AtOnce, one_source, source_bound
from coldstart.portions import OUTRUN
from tests.phases.swarm import CHUNKS, SIZE, Swarm

LIMITS = Limits(crowd=0, sources=6, floor=0.0, patience=1000.0)
RATE = 10e6
FOUR = {1: RATE, -1: RATE, -2: RATE, -3: RATE}


@pytest.mark.parametrize("holders", [1, 2, 3, 4, 6])
def test_a_lone_joiner_takes_from_all_that_are_capped_but_from_four_at_most(holders: int) -> None:
    ended = Swarm(LIMITS, {1 - number or 1: RATE for number in (0, *range(2, holders + 1))}).play()
    assert isinstance(ended.state, Checking)
    assert set(ended.asked.values()) == {1}, "each chunk is asked for once"
    sources = min(holders, MOST)
    assert ended.most == sources
    watched, whole = 1.1, CHUNKS * SIZE / RATE
    assert ended.seconds < watched + (whole - watched) / sources + 3 * SIZE / RATE
    ends = dict(ended.released)
    assert [attempt for attempt in sorted(ends) if ends[attempt] == "ok"] == list(range(1 - sources, 0))
    assert set(ends.values()) <= {"ok", "nobody is free"}


def test_sources_of_any_rates_end_together() -> None:
    rates = {1: 20e6, -1: 24e6, -2: 12e6, -3: 16e6}
    ended = Swarm(LIMITS, rates).play()
    assert isinstance(ended.state, Checking)
    assert min(ended.brought.values()) > 0
    assert ended.seconds < 1.2 + (CHUNKS * SIZE - 1.2 * 20e6) / sum(rates.values()) + 3 * SIZE / min(rates.values())


@pytest.mark.parametrize("slow", [-1, -2, -3])
def test_the_slowest_of_several_is_outrun_by_one_that_has_nothing_to_do(slow: int) -> None:
    ended = Swarm(LIMITS, {**FOUR, slow: 0.04 * RATE}, at_once=lambda flow: 4).play()
    assert isinstance(ended.state, Checking)
    assert (slow, OUTRUN) in ended.released
    assert [outcome for _, outcome in ended.released].count(OUTRUN) == 1, "the others are not given up"
    assert max(ended.asked.values()) <= 2


def test_of_two_slow_ones_the_slower_one_is_outrun_first() -> None:
    ended = Swarm(LIMITS, {**FOUR, -1: 0.06 * RATE, -3: 0.03 * RATE}, at_once=lambda flow: 4).play()
    assert [attempt for attempt, outcome in ended.released if outcome == OUTRUN] == [-3, -1]


def test_the_first_one_is_left_only_when_no_further_one_is_at_work() -> None:
    """All are left with it. So of two slow ones the further one is first."""
    slow = {**FOUR, 1: 0.05 * RATE, -2: 0.05 * RATE}
    swarm = Swarm(LIMITS, slow, at_once=lambda flow: 4)
    while isinstance(swarm.state, Transferring):
        assert not (outruns(swarm.state, swarm.now) and any(each.pulling for each in swarm.state.further))
        swarm.turn()
    assert swarm.released == [(-2, OUTRUN), (-1, OUTRUN), (-3, OUTRUN), (1, OUTRUN)]
    assert isinstance(swarm.state, Discovering)


@given(
    rates=st.lists(st.floats(2e6, 200e6), min_size=1, max_size=5),
    growing=st.booleans(),
    dies=st.tuples(st.integers(0, 4), st.integers(0, CHUNKS)),
    wanted=st.sampled_from([source_bound, one_source, lambda flow: 3, lambda flow: flow.sources + 1, lambda flow: 9]),
)
@settings(max_examples=150, deadline=None)
def test_whoever_dies_at_any_step_all_arrives_and_no_slot_is_kept(
    rates: list[float], growing: bool, dies: tuple[int, int], wanted: AtOnce
) -> None:
    attempts = [1, *range(-1, -len(rates), -1)]
    who = attempts[dies[0] % len(attempts)]
    swarm = Swarm(LIMITS, dict(zip(attempts, rates, strict=True)), growing=growing, dies=(who, dies[1]), at_once=wanted)
    ended = swarm.play()
    journey, came = ended.state.journey, sum(ended.brought.values())
    assert ended.most <= MOST
    assert len(journey.verified) <= came, "nothing is counted that nobody brought"
    used = {attempt for attempt, brought in ended.brought.items() if brought and attempt < 0}
    assert used <= {attempt for attempt, _ in ended.released}, "every slot is given back"
    assert len({attempt for attempt, _ in ended.released}) == len(ended.released), "once"
    if not any(outcome in ("closed", OUTRUN) for attempt, outcome in ended.released if attempt == 1):
        assert isinstance(ended.state, Checking)
        assert journey.complete
