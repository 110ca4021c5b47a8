"""Seeded storms over the real hands: no promise is broken, and every storm can be played again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from coldstart.landing import Landing
from coldstart.layout import Span
from coldstart.lending import Lending
from coldstart.mail import Mail
from coldstart.testing.chaos import Outcome, storm
from coldstart.testing.transports import Wrapped

SEEDS = range(48)


@pytest.mark.parametrize("block", range(8))
def test_no_promise_is_broken_in_a_storm(block: int) -> None:
    for seed in SEEDS[block::8]:
        outcome = storm(seed)
        if outcome.violations:
            pytest.fail(str(storm(seed, journal=True)))


def test_a_storm_is_the_same_in_every_process() -> None:
    seeds = (1, 7, 19)
    command = f"from coldstart.testing.chaos import storm; print(*(storm(seed).trace_hash for seed in {seeds}))"
    here = [storm(seed).trace_hash for seed in seeds]
    assert len(set(here)) == len(seeds)
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", command],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        assert done.stdout.split() == here


def test_a_seed_is_replayed_by_one_command() -> None:
    outcome = storm(3)
    done = subprocess.run(
        [sys.executable, *outcome.replay.split()[1:]], capture_output=True, text=True, check=True, timeout=60
    )
    assert outcome.trace_hash in done.stdout
    assert "Discovering" in done.stdout


def test_storms_meet_everything() -> None:
    """Seeds are of no use if their luck avoids what they are for."""
    paths: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in range(100, 112):
        outcome = storm(seed)
        paths.update(outcome.paths)
        faults.update(outcome.faults)
    assert {"peer", "storage", "mixed", "failed", "left"} <= set(paths)
    assert len(faults) >= 12, faults


def test_a_transport_of_ones_own_goes_through_it() -> None:
    made: list[Wrapped] = []

    def own(inner: Wrapped) -> Wrapped:
        made.append(Wrapped(inner))
        return made[-1]

    outcome = storm(2, transport=own)
    assert made
    assert outcome.trace_hash == storm(2).trace_hash


# ------------------------------------------------------------------------------------ planted bugs


def broken(seeds: range) -> set[str]:
    return {violation.promise for seed in seeds for violation in storm(seed).violations}


def test_a_late_report_that_is_taken_in_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Landing._take

    def credulous(self: Landing, span: Span) -> None:
        self._settled = False
        taken(self, span)

    monkeypatch.setattr(Landing, "_take", credulous)
    assert "no part breaks" in broken(range(24))


def test_a_source_that_proves_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lending, "_inspect", _proven)
    assert "never serve wrong weights" in broken(range(8))


def test_a_postman_that_gives_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mail, "_deliver", lambda self, letter: None)
    assert "no lasting harm" in broken(range(4))


async def _proven(self: Lending, effect: object) -> object:
    from coldstart.events import WeightsProven

    return WeightsProven(getattr(effect, "generation", 0))


def test_an_outcome_tells_how_to_play_it_again() -> None:
    assert "python -m coldstart.testing.chaos 5" in str(Outcome(5, "", 0, 0.0, {}, {}))
