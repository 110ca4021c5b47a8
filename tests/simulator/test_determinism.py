"""A seed is one run: the same steps at the same moments, here, again, and in another process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from coldstart.testing.simulator import Fault, Scenario, simulate, troubled

SCENARIOS = {
    "quiet": Scenario(workers=16),
    "all faults": troubled(16),
    "at the store": troubled(8, (Fault.LOSS, Fault.REPEAT, Fault.DELAY, Fault.FAILOVER, Fault.CLOCK)),
}
SEEDS = range(6)

ELSEWHERE = """
from tests.simulator.test_determinism import hashes
print(*hashes())
"""


def hashes(*, journal: bool = False) -> list[str]:
    """Of every scenario and seed."""
    return [simulate(scenario, seed, journal=journal).trace_hash for scenario in SCENARIOS.values() for seed in SEEDS]


def test_each_seed_and_each_scenario_is_a_run_of_its_own() -> None:
    found = hashes()
    assert len(set(found)) == len(found)


def test_a_run_does_not_depend_on_what_was_played_before_nor_on_being_watched() -> None:
    assert hashes() == hashes(journal=True)


@pytest.mark.processes
@pytest.mark.parametrize("hash_seed", ["0", "1", "4294967295"])
def test_a_run_is_the_same_in_another_process(hash_seed: str) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], env=environment, capture_output=True, text=True, timeout=50, check=True
    )
    assert done.stdout.split() == hashes()
