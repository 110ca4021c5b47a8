"""One joiner and several holders in the simulator: several sources where they are the bottleneck, one where not."""

from __future__ import annotations

from functools import cache

import pytest
from msgspec.structs import replace

from coldstart import machine
from coldstart.effects import Effect
from coldstart.events import Event
from coldstart.phases.states import State, Transferring
from coldstart.plan import Chunks, Limits
from coldstart.policies import MOST, Flow, one_source, source_bound
from coldstart.testing.simulator import Fabric, Fault, Outcome, Process, Scenario, simulate
from coldstart.testing.simulator.promises import DISTURB, LATE

CAPPED = Scenario(
    workers=1,
    holders=2,
    chunks=200,
    chunk_bytes=1 << 26,
    spread=0.0,
    storage=12.5e9,
    fabric=Fabric(egress=1e9, ingress=4e9, storage=40e9),
    limits=Limits(floor=3e8),
)
NARROW = replace(CAPPED, fabric=Fabric(egress=4e9, ingress=1e9, storage=40e9))
"""The joiner's own link is the bottleneck."""


@cache
def played(scenario: Scenario) -> Outcome:
    outcome = simulate(scenario, 1)
    assert not outcome.violations, outcome.violations
    return outcome


def seconds(scenario: Scenario) -> float:
    return played(scenario).served["w0"].at


@pytest.mark.parametrize("known", [0.0, 4e9], ids=["unknown link", "known link"])
def test_two_sources_of_half_the_rate_take_little_more_than_half_the_time(known: float) -> None:
    both, one = seconds(replace(CAPPED, link_known=known)), seconds(replace(CAPPED, at_once=one_source))
    assert both < 0.56 * one
    assert played(replace(CAPPED, link_known=known)).wasted == 0


@pytest.mark.parametrize(("holders", "times"), [(3, 2.5), (4, 3.2), (6, 3.2)])
def test_several_sources_take_their_part_of_the_time(holders: int, times: float) -> None:
    """All but the first second, in which one is watched, and never quicker than their links."""
    scenario = replace(CAPPED, holders=holders)
    several, one = seconds(scenario), seconds(replace(CAPPED, at_once=one_source))
    assert several < one / times
    assert several > scenario.chunks * scenario.chunk_bytes / (min(holders, MOST) * 1e9)
    assert played(scenario).wasted == 0


def test_as_many_as_the_joiner_has_room_for() -> None:
    """It has room for one and a half: two are kept of the four that were tried."""
    asked: list[Flow] = []

    def overheard(flow: Flow) -> int:
        asked.append(flow)
        return source_bound(flow)

    narrow = replace(CAPPED, holders=4, fabric=Fabric(egress=1e9, ingress=1.5e9, storage=40e9))
    one, several = replace(narrow, at_once=one_source), replace(narrow, at_once=overheard)
    assert not simulate(several, 1).violations
    joiners = [flow.sources for flow in asked if flow.left > CAPPED.chunks * CAPPED.chunk_bytes // 4]
    assert (joiners[0], max(joiners), joiners[-1]) == (1, 4, 2)
    assert seconds(narrow) < seconds(one) / 1.4


class Grasping(Process):
    """It forgets what a further source has on its way, and asks the others for it."""

    @staticmethod
    def joiner_step(state: State, event: Event, at: float) -> tuple[State, tuple[Effect, ...]]:
        if isinstance(state, Transferring) and len(state.further) > 1:
            last = state.further[-1]
            state = state.with_further(replace(last, pulling=Chunks()))
        return machine.step(state, event, at)


def test_a_planted_bug_with_several_sources_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    four = replace(CAPPED, holders=6)
    assert {each.promise for each in simulate(four, 1, worker=Grasping).violations} >= {LATE}
    monkeypatch.setattr("coldstart.phases.widen.MOST", 9)
    many = replace(four, at_once=lambda flow: 9)
    assert {each.promise for each in simulate(many, 1).violations} == {DISTURB}


def test_where_the_joiner_is_the_bottleneck_a_second_source_is_not_kept() -> None:
    one = replace(NARROW, at_once=one_source)
    assert seconds(NARROW) < 1.01 * seconds(one), "trying cost next to nothing"
    known = replace(NARROW, link_known=1e9)
    assert played(known).trace_hash == played(replace(known, at_once=one_source)).trace_hash, "none was tried"


def test_with_one_holder_or_pulls_that_cannot_grow_nothing_changes() -> None:
    one = replace(CAPPED, at_once=one_source)
    for scenario in (replace(CAPPED, holders=1), replace(CAPPED, growing=False)):
        assert seconds(scenario) == pytest.approx(seconds(one), rel=0.01)


@pytest.mark.parametrize("seed", range(24))
def test_whoever_dies_the_joiner_serves_and_no_slot_is_lost(seed: int) -> None:
    faults = (Fault.CRASH, Fault.VANISH, Fault.CUT, Fault.SLOW)
    scenario = replace(CAPPED, holders=3 + seed % 3, faults=faults, strikes=4, trouble=6.0)
    assert not simulate(scenario, seed).violations


@pytest.mark.parametrize("holders", [1, 4])
def test_a_rollout_is_no_slower_for_joiners_that_look_for_a_second_source(holders: int) -> None:
    """Nobody knows the links, so that a second source looks worth a try; whoever still receives is spared it."""
    links = Fabric(egress=12.5e9, ingress=12.5e9, storage=40e9, even=True)
    rollout = replace(CAPPED, workers=16, holders=holders, chunk_bytes=1 << 28, chunks=238, fabric=links)
    one = played(replace(rollout, at_once=one_source))
    last = max(served.at for served in played(rollout).served.values())
    assert last < 1.02 * max(served.at for served in one.served.values())
