"""A trace as text: one line per span, with its time, what it says of itself, its events and its links.

Decides what of a span is worth reading. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.traces.spans import Event, Link, Span, Value, children

SHOWN = (
    "coldstart.path", "coldstart.source", "coldstart.sources", "coldstart.worker",
    "coldstart.transport", "coldstart.leading", "coldstart.transfer.size", "coldstart.transfer.rate",
    "coldstart.outcome", "coldstart.how", "coldstart.chunk", "coldstart.reason", "coldstart.relation", "error.type",
)  # fmt: skip
"""Attributes that a tree shows, in this order."""


def draw(spans: Sequence[Span], roots: Mapping[str, str] | None = None) -> str:
    """The trees of ``spans``; ``roots`` are names for spans of other traces that links lead to, by span id."""
    found: list[str] = []
    for root in children(spans, None):
        found += _lines(root, spans, root.begin, roots or {}, "", "")
    return "\n".join(found)


def _lines(
    span: Span, spans: Sequence[Span], began: float, roots: Mapping[str, str], first: str, rest: str
) -> Iterator[str]:
    number = f" {span.attributes['coldstart.number']}" if span.name == "coldstart.attempt" else ""
    what = f"{first}{span.name.removeprefix('coldstart.')}{number}"
    time = f"{(span.begin - began) * 1000:7.0f} +{(span.end - span.begin) * 1000:.0f} ms"
    error = f"  ERROR {span.error}" if span.error else ""
    yield f"{what:<24}{time:<20}{_said(span.attributes)}{error}".rstrip()
    below = children(spans, span)
    inner = f"{rest}{'│  ' if below else '   '}"
    for each in span.links:
        yield f"{inner}↗ {_link(each, roots)}"
    for event in span.events:
        if event.name != "entered":
            yield f"{inner}{_event(event, began)}".rstrip()
    for place, child in enumerate(below):
        last = place == len(below) - 1
        yield from _lines(
            child, spans, began, roots, f"{rest}{'└─ ' if last else '├─ '}", f"{rest}{'   ' if last else '│  '}"
        )


def _event(event: Event, began: float) -> str:
    return f"! {event.name} at {(event.at - began) * 1000:.0f} ms  {_said(event.attributes)}"


def _link(link: Link, roots: Mapping[str, str]) -> str:
    return f"link to {roots.get(link.span, f'span {link.span}')}  {_said(link.attributes)}".rstrip()


def _said(attributes: Mapping[str, Value]) -> str:
    return "  ".join(
        f"{name.removeprefix('coldstart.')}={_value(name, attributes[name])}" for name in SHOWN if name in attributes
    )


def _value(name: str, value: Value) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    if name.endswith(".rate") and isinstance(value, int | float):
        return f"{value / 1e9:.2f} GB/s"
    if name.endswith(".size") and isinstance(value, int):
        return f"{value / 1e6:.1f} MB"
    return str(value)
