"""Seeded storms over the real hands: no promise is broken, and every storm can be played again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from functools import cache

import pytest

from coldstart.effects import Inspect
from coldstart.events import WeightsProven
from coldstart.landing import Landing
from coldstart.layout import Span
from coldstart.lending import Lending
from coldstart.mail import Mail
from coldstart.ports import Transport
from coldstart.testing.chaos import storm
from coldstart.testing.transports import Wrapped

SEEDS = range(28)
"""About twenty seconds in all, with what else is here; `python -m coldstart.testing.chaos SEED` plays any other."""

BLOCKS = 7

played = cache(storm)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_promise_is_broken_in_a_storm(block: int) -> None:
    for seed in SEEDS[block::BLOCKS]:
        if played(seed).violations:
            pytest.fail(str(storm(seed, journal=True)))


def test_the_storms_meet_everything() -> None:
    """Seeds are of no use if their luck avoids what they are for."""
    paths: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in SEEDS:
        paths.update(played(seed).paths)
        faults.update(played(seed).faults)
    assert set(paths) == {"peer", "storage", "mixed", "failed", "left"}
    assert len(faults) == 14, faults


def test_a_storm_is_the_same_in_every_process() -> None:
    seeds = (1, 7)
    command = f"from coldstart.testing.chaos import storm; print(*(storm(seed).trace_hash for seed in {seeds}))"
    here = [played(seed).trace_hash for seed in seeds]
    assert here[0] != here[1]
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


def test_a_seed_is_replayed_and_told_by_one_command() -> None:
    outcome = played(3)
    done = subprocess.run(
        [sys.executable, *outcome.replay.split()[1:]], capture_output=True, text=True, check=True, timeout=60
    )
    assert outcome.trace_hash in done.stdout
    assert "Idle -> Discovering" in done.stdout


def test_a_transport_of_ones_own_goes_through_it() -> None:
    made: list[Wrapped] = []

    def own(inner: Transport) -> Wrapped:
        made.append(Wrapped(inner))
        return made[-1]

    outcome = storm(2, transport=own)
    assert made
    assert outcome.trace_hash == played(2).trace_hash


# ------------------------------------------------------------------------------------ planted bugs


def broken(seed: int) -> set[str]:
    return {violation.promise for violation in storm(seed).violations}


def test_late_reports_that_are_taken_in_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    landed = Landing.landed

    def credulous(self: Landing, span: Span) -> None:
        self._settled = False
        landed(self, span)

    monkeypatch.setattr(Landing, "landed", credulous)
    assert broken(12) == {"no part breaks"}


def test_a_source_that_looks_at_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def credulous(self: Lending, effect: Inspect) -> WeightsProven:
        return WeightsProven(effect.generation)

    monkeypatch.setattr(Lending, "_inspect", credulous)
    assert broken(0) == {"never serve wrong weights"}


def test_a_postman_that_delivers_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mail, "_deliver", lambda self, letter: None)
    assert broken(0) == {"no lasting harm"}
