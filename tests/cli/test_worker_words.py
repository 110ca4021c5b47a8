"""What ``coldstart worker`` says of where bytes came from, and of an estimate: one line, whatever was decided."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from coldstart.cli import worker
from coldstart.estimate import Decision
from coldstart.report import Attempt, Report, Weighed

BASIS = ("4 GB missing", "0.1 GB/s (link)", "storage 2 GB/s, 1 others read it")
WORDS = {
    "wait": "a peer",
    "ask": "a peer, before the store had answered",
    "storage": "storage",
    "full": "a peer, as enough others read storage, or the store did not say",
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


@pytest.mark.parametrize(
    ("sources", "of_peers", "of_storage", "words"),
    [
        ((), 0, 400, "400 B from storage at 0.25 GB/s"),
        (("a",), 400, 0, "400 B from a at 0.25 GB/s"),
        (("a", "b"), 400, 0, "400 B from a (100 B), b (300 B) at 0.25 GB/s"),
        (("a",), 100, 300, "100 B from a at 0.25 GB/s and 300 B from storage"),
    ],
)
def test_bytes_are_said_to_come_from_whom_they_came(
    sources: tuple[str, ...], of_peers: int, of_storage: int, words: str
) -> None:
    fields: dict[str, object] = {field.name: () for field in msgspec.structs.fields(Report)}
    fields["attempts"] = (Attempt(1, "a", "tcp", 1.0, 100, "stalled"), Attempt(2, "b", "tcp", 1.0, 300, "ok"))
    given = {"sources": sources, "bytes_peer": of_peers, "bytes_storage": of_storage, "bytes_total": 400, "gbps": 0.25}
    assert worker.words_of_bytes(Report(**{**fields, **given})) == words  # type: ignore[arg-type]
