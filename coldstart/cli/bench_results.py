"""What ``coldstart bench`` found: figures, bars, and how they look.

Decides which statistics of repeated measurements are reported and when a bar is met. It must
not know how anything was measured (``bench.py`` knows the parts).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from coldstart.cli import output

Note = Callable[[str], None]
"""Says what is being measured now."""


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing measured ``count`` times. Percentiles only where there are enough values for them."""

    unit: str
    median: float
    low: float
    high: float
    count: int
    p90: float | None = None
    p99: float | None = None


class Bar(msgspec.Struct, frozen=True):
    """What a figure is held against."""

    what: str
    value: float
    limit: float
    unit: str
    met: bool


class Part(msgspec.Struct, frozen=True):
    """One part of the bench. ``notes`` say what the figures do not."""

    figures: Mapping[str, Figure]
    bars: tuple[Bar, ...]
    notes: tuple[str, ...] = ()


class Result(msgspec.Struct, frozen=True):
    """The whole bench; ``parts`` by name, only those that were asked for."""

    mib: int
    rounds: int
    cpus: int
    parts: Mapping[str, Part]


def figure(unit: str, values: Sequence[float]) -> Figure:
    """``values`` as their median, range and percentiles."""
    ranked = sorted(values)
    count = len(ranked)
    return Figure(
        unit=unit,
        median=_round(statistics.median(ranked)),
        low=_round(ranked[0]),
        high=_round(ranked[-1]),
        count=count,
        p90=_round(_rank(ranked, 0.90)) if count >= 10 else None,
        p99=_round(_rank(ranked, 0.99)) if count >= 100 else None,
    )


def at_least(what: str, value: float, limit: float, unit: str = "") -> Bar:
    return Bar(what, _round(value), limit, unit, value >= limit)


def at_most(what: str, value: float, limit: float, unit: str = "") -> Bar:
    return Bar(what, _round(value), limit, unit, value <= limit)


def ratio(values: Sequence[float], limits: Sequence[float]) -> float:
    """The median of the quotients of pairs: what disturbs both of a pair cancels."""
    return statistics.median(value / limit for value, limit in zip(values, limits, strict=True))


def show(result: Result) -> None:
    """Tables of figures, then the bars."""
    for name, part in result.parts.items():
        rows = [_row(label, found) for label, found in part.figures.items()]
        columns = ("measured", "median>", "min>", "max>", "p90>", "p99>", "unit", "n>")
        output.table(f"{name} ({result.mib} MiB, {result.cpus} CPUs)" if name == "tcp" else name, columns, rows)
        for note in part.notes:
            output.say(f"  {note}")
        output.say("")
    output.table("bars", ("bar", "found>", "limit>", "unit", "met"), list(_bars(result)))


def _row(label: str, found: Figure) -> tuple[str, ...]:
    numbers = (found.median, found.low, found.high, found.p90, found.p99)
    return (label, *("" if number is None else f"{number:g}" for number in numbers), found.unit, str(found.count))


def _bars(result: Result) -> Iterator[tuple[str, ...]]:
    for name, part in result.parts.items():
        for bar in part.bars:
            yield f"{name}: {bar.what}", f"{bar.value:g}", f"{bar.limit:g}", bar.unit, "yes" if bar.met else "NO"


def _rank(ranked: Sequence[float], share: float) -> float:
    """The smallest value that is not below ``share`` of all."""
    return ranked[math.ceil(share * len(ranked)) - 1]


def _round(value: float) -> float:
    """Four significant digits: more is noise."""
    return float(f"{value:.4g}")
