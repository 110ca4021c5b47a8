"""The simulator finds what it is for: every planted bug, within a few seeds; and none where there is none."""

from __future__ import annotations

import pytest

from coldstart.testing.simulator import Process, simulate, troubled
from tests.simulator.mutants import MUTANTS, Mutant

WORKERS = 8
SEEDS = range(40)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.worker.__name__)
def test_a_planted_bug_is_found_and_the_sound_worker_is_not_blamed(mutant: Mutant) -> None:
    scenario = troubled(WORKERS, mutant.faults)
    for seed in SEEDS:
        if simulate(scenario, seed, worker=mutant.worker).violations:
            assert simulate(scenario, seed, worker=Process).violations == ()
            return
    pytest.fail(f"{mutant.worker.__name__} survives {len(SEEDS)} seeds")
