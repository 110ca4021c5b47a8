"""What ``coldstart worker`` says of an estimate: one line, whatever was decided."""

from __future__ import annotations

from typing import get_args

import pytest

from coldstart.cli import worker
from coldstart.estimate import Decision
from coldstart.report import Weighed

BASIS = ("4 GB missing", "0.1 GB/s (link)", "storage 2 GB/s, 1 others read it")
WORDS = {
    "wait": "a peer",
    "ask": "a peer, before the store had answered",
    "storage": "storage",
    "full": "a peer, as enough others read storage",
}


@pytest.mark.parametrize("decision", get_args(Decision))
def test_expectation_figures_decision_and_outcome_are_one_line(decision: Decision) -> None:
    said = worker.words_of_estimate(Weighed(0.1, 40.0, 4.0, BASIS, decision, 4.25))
    assert said == (
        "expected of a peer 40.00 s, storage 4.00 s (4 GB missing, 0.1 GB/s (link), storage 2 GB/s, 1 others read it): "
        f"{WORDS[decision]}; it took 4.25 s"
    )


def test_what_has_not_ended_took_nothing_yet() -> None:
    assert worker.words_of_estimate(Weighed(0.1, 40.0, 4.0, BASIS, "wait")).endswith("): a peer")
