"""Fixed blocks of seeds with groups of ranks, in which every promise must hold, one answer for all among them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from coldstart import effects, events, machine
from coldstart.cli.simulate_words import Asked
from coldstart.events import Event
from coldstart.group import READY, Verdict
from coldstart.phases.states import Confirming, Move, State
from coldstart.testing.simulator import Fault, Process, simulate
from coldstart.testing.simulator.groups import TOGETHER

TROUBLED = {(8, 4): 60, (6, 2): 60, (10, 3): 40, (32, 8): 8}
"""Seeds by workers and size of a group, with all faults."""


def assert_kept(asked: Asked, seeds: range) -> dict[str, int]:
    """Play ``seeds``; cold starts by path."""
    paths: dict[str, int] = {}
    for seed in seeds:
        outcome = simulate(asked.scenario(), seed)
        for path, count in outcome.paths.items():
            paths[path] = paths.get(path, 0) + count
        if outcome.violations:
            broken = "\n".join(f"  {each.promise}: {each.worker}: {each.what}" for each in outcome.violations)
            pytest.fail(f"seed {seed}:\n{broken}\nreplay: {asked.replay(seed)}", pytrace=False)
    return paths


@pytest.mark.parametrize(("workers", "size"), TROUBLED)
def test_every_promise_holds_with_all_faults(workers: int, size: int) -> None:
    assert_kept(Asked(workers, tuple(Fault), group_size=size), range(TROUBLED[workers, size]))


@pytest.mark.parametrize("fault", Fault)
def test_every_promise_holds_with_one_kind_of_fault(fault: Fault) -> None:
    assert_kept(Asked(8, (fault,), group_size=4), range(1000, 1015))


def test_without_faults_every_group_but_the_first_is_fed_by_peers_and_none_fails() -> None:
    seeds = 30
    paths = assert_kept(Asked(8, (), group_size=4), range(seeds))
    assert set(paths) == {"peer", "storage"}
    assert paths["storage"] == 4 * seeds


@pytest.mark.parametrize("fault", [Fault.WIPE, Fault.OUTAGE, Fault.FAILOVER, Fault.LOSS, Fault.DELAY])
def test_a_store_in_trouble_costs_no_group_its_start(fault: Fault) -> None:
    assert "failed" not in assert_kept(Asked(8, (fault,), group_size=4), range(2000, 2040))


def test_a_seed_is_the_same_run_again() -> None:
    scenario = Asked(8, tuple(Fault), group_size=4).scenario()
    assert simulate(scenario, 5).trace_hash == simulate(scenario, 5).trace_hash


# ------------------------------------------------------------------------------------- planted bugs


class Hasty(Process):
    """It serves without waiting for its group."""

    @staticmethod
    def joiner_step(state: State, event: Event, at: float) -> Move:
        after, asked = machine.step(state, event, at)
        if isinstance(after, Confirming):
            after, more = machine.step(after, events.GroupHeard((Verdict(READY, True),)), at)
            asked = (*asked, *more)
        return after, asked


class Optimist(Process):
    """It says yes to the others whatever path it takes."""

    @staticmethod
    def joiner_step(state: State, event: Event, at: float) -> Move:
        after, asked = machine.step(state, event, at)
        said = (replace(each, yes=True) if isinstance(each, effects.Vote) else each for each in asked)
        return after, tuple(said)


@pytest.mark.parametrize("worker", [Hasty, Optimist], ids=lambda worker: worker.__name__)
def test_a_rank_that_does_not_act_as_one_is_noticed(worker: type[Process]) -> None:
    scenario = Asked(8, (Fault.VANISH, Fault.CUT, Fault.STORAGE), group_size=4).scenario()
    broken = {each.promise for seed in range(12) for each in simulate(scenario, seed, worker=worker).violations}
    assert TOGETHER in broken
