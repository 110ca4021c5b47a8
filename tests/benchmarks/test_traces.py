"""Traces as text, and the page that shows them."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from benchmarks.traces.spans import Event, Link, Span, children
from benchmarks.traces.tree import draw

PAGE = Path(__file__).parent.parent.parent / "docs" / "tracing.md"


def span(name: str, begin: float, end: float, parent: str = "", **attributes: str | int | float | bool) -> Span:
    named = {f"coldstart.{key}": value for key, value in attributes.items()}
    return Span(name, "t", name, parent, "internal", begin, end, named, (), (), None, "w")


ROOT = span("coldstart", 100.0, 101.5, path="mixed")
ATTEMPT = msgspec.structs.replace(span("coldstart.attempt", 100.1, 101.0, "coldstart", number=1), error="a: stalled")
STALL = Event("stalled", 101.0, {"coldstart.source": "a", "coldstart.reason": "stalled"})
PULL = msgspec.structs.replace(span("coldstart.pull", 100.2, 101.0, "coldstart.attempt", source="a"), events=(STALL,))
LEND = msgspec.structs.replace(
    span("coldstart.lend", 100.15, 101.2, "coldstart.attempt", worker="a"),
    links=(Link("u", "other", {"coldstart.relation": "relay"}),),
)
SERVE = span("coldstart.serve", 101.5, 101.5, "coldstart")


def test_a_tree_shows_times_trouble_and_links() -> None:
    spans = [SERVE, PULL, LEND, ATTEMPT, ROOT]
    found = draw(spans, {"other": "the cold start of a"})
    assert [" ".join(line.split()) for line in found.splitlines()] == [
        "coldstart 0 +1500 ms path=mixed",
        "├─ attempt 1 100 +900 ms ERROR a: stalled",
        "│ ├─ lend 150 +1050 ms worker=a",
        "│ │ ↗ link to the cold start of a relation=relay",
        "│ └─ pull 200 +800 ms source=a",
        "│ ! stalled at 1000 ms source=a reason=stalled",
        "└─ serve 1500 +0 ms",
    ]


def test_a_span_whose_parent_nobody_has_sent_is_not_lost() -> None:
    assert children([PULL, LEND], None) == [LEND, PULL]


def test_the_page_shows_a_tree_and_a_timeline_for_each_case() -> None:
    text = PAGE.read_text()
    for case, said in (("good", "path=peer"), ("chain", "relation=relay"), ("bad", "! stalled")):
        found = re.search(f"<!-- {case}: begin -->(.*)<!-- {case}: end -->", text, re.DOTALL)
        assert found is not None, case
        assert said in found[1], case
        assert found[1].count("```text") == 2, case
        assert "`coldstart trace w" in found[1], case
