"""Fleets that weigh waiting against storage: those with slow peers gain by it, and others do as they did."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from coldstart.plan import Limits
from coldstart.policies import one_source
from coldstart.testing.simulator import Fabric, Fault, Link, Outcome, Scenario, simulate, troubled

GB = 1e9
SLOW = Scenario(
    workers=16,
    holders=1,
    chunks=64,
    chunk_bytes=1 << 26,
    spread=0.0,
    storage=2 * GB,
    fabric=Fabric(egress=0.1 * GB, ingress=12.5 * GB, storage=8 * GB),
    limits=Limits(),
    at_once=one_source,
)
"""A model of 4.3 GB: 43 s over a peer's link, 2 s from storage, which four can read at their full rate. Nobody seeks
second sources outside of crowds: that depends on what is known of links, too, and is tested elsewhere."""
KNOWING = replace(SLOW, link_known=0.1 * GB, storage_known=2 * GB)


def last(outcome: Outcome) -> float:
    assert not outcome.violations
    return max(served.at for served in outcome.served.values())


def by_choice(outcome: Outcome) -> int:
    return outcome.weighed.get("storage", 0)


@pytest.mark.parametrize("seed", range(3))
def test_slow_peers_beside_quick_storage_are_left_for_it(seed: int) -> None:
    before, after = simulate(SLOW, seed), simulate(KNOWING, seed)
    assert by_choice(before) == 0
    assert by_choice(after) >= 15
    assert last(after) < last(before) / 3


def test_links_that_nobody_has_measured_are_found_out_by_how_the_transfer_goes() -> None:
    before, after = simulate(SLOW, 1), simulate(replace(KNOWING, link_known=0.0), 1)
    assert by_choice(after) >= 12
    assert after.paths["mixed"] >= 12, "what had come by then was kept"
    assert last(after) < last(before) / 3


def test_storage_is_not_taken_by_more_than_it_is_worth_to() -> None:
    """Here it is worth it to one at a time, by what one got alone; nobody is later for that."""
    few = replace(KNOWING, storage=0.3 * GB, storage_known=0.3 * GB, fabric=Fabric(0.1 * GB, 12.5 * GB, 0.3 * GB))
    before, after = simulate(replace(few, link_known=0.0, storage_known=0.0), 1), simulate(few, 1)
    assert 1 <= by_choice(after) <= 8
    assert last(after) <= 1.02 * last(before)


def test_a_fleet_that_knows_no_rates_of_storage_does_as_it_did() -> None:
    without, knowing = simulate(SLOW, 1), simulate(replace(SLOW, link_known=0.1 * GB), 1)
    assert knowing.trace_hash == without.trace_hash
    assert knowing.weighed == {}


@pytest.mark.parametrize("holders", [0, 1, 4])
@pytest.mark.parametrize("workers", [8, 64])
def test_ordinary_fleets_never_read_storage_by_estimate(workers: int, holders: int) -> None:
    ordinary = replace(
        SLOW,
        workers=workers,
        holders=holders,
        chunk_bytes=1 << 30,
        storage=12.5 * GB,
        fabric=Fabric(12.5 * GB, 12.5 * GB, 40 * GB, even=True),
    )
    knowing = replace(ordinary, link_known=12.5 * GB, storage_known=12.5 * GB)
    before, after = simulate(ordinary, 1), simulate(knowing, 1)
    assert after.trace_hash == before.trace_hash
    assert after.storage_reads == 1
    assert by_choice(after) == 0


@pytest.mark.parametrize("workers", [3, 8, 16])
def test_promises_hold_under_faults_however_wrong_the_figures_are(workers: int) -> None:
    """Storage that is believed to be quick is read all the time; it must not be worse than that."""
    wrong = replace(troubled(workers, tuple(Fault)), link_known=1e7, storage_known=1e9)
    slow = replace(
        troubled(workers, tuple(Fault)), chunk_bytes=1 << 26, transport=Link(5e7), storage_known=2e8, limits=Limits()
    )
    slow = replace(slow, limits=replace(troubled(workers).limits, floor=2e7))
    for scenario in (wrong, slow):
        decided = 0
        for seed in range(12):
            outcome = simulate(scenario, seed)
            assert not outcome.violations, (seed, outcome.violations)
            decided += by_choice(outcome)
        assert decided > 0
