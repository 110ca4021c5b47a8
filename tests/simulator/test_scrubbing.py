"""Fleets whose sources digest their weights anew: what rots is found by its holder, and nothing else is."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from coldstart import source
from coldstart.effects import Effect, Scrub
from coldstart.events import Event, Scrubbed
from coldstart.source import Source
from coldstart.testing.simulator import Fault, Process, simulate, troubled

PASS = 5.0
SEEDS = {3: 60, 16: 20}
"""By workers."""


class Inattentive(Process):
    """It scrubs without looking."""

    @staticmethod
    def source_step(state: Source, event: Event, at: float) -> tuple[Source, tuple[Effect, ...]]:
        after, asked = source.step(state, event, at)
        for scrub in [effect for effect in asked if isinstance(effect, Scrub)]:
            after, asked = source.step(after, Scrubbed(scrub.generation, scrub.chunks, 0.0), at)
        return after, asked


@pytest.mark.parametrize("workers", SEEDS)
@pytest.mark.parametrize("faults", [tuple(Fault), (Fault.ROT, Fault.CHANGE)], ids=["all", "weights"])
def test_every_promise_holds_and_no_source_lends_what_has_rotted(workers: int, faults: tuple[Fault, ...]) -> None:
    scenario = replace(troubled(workers, faults), scrub=PASS)
    for seed in range(SEEDS[workers]):
        assert simulate(scenario, seed).violations == (), seed


def test_a_source_that_scrubs_without_looking_is_found() -> None:
    scenario = replace(troubled(3, (Fault.ROT,)), scrub=PASS)
    found = [each for seed in range(20) for each in simulate(scenario, seed, worker=Inattentive).violations]
    assert any(each.what == "lends what is wrong, and has not noticed" for each in found)


def test_a_fleet_without_faults_scrubs_in_vain() -> None:
    for seed in range(10):
        assert simulate(replace(troubled(8, ()), scrub=PASS), seed).violations == ()
