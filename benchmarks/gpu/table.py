"""How rows look: one line each, printed as soon as it is known.

Decides columns and rounding. It must not know what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.gpu.words import Figure, Row

WIDTHS = (7, 64, 10, 10, 10, 6)
HEADINGS = ("model", "what", "best", "median", "first", "share")


def number(value: float, unit: str) -> str:
    """``value`` with about three digits, and its unit."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    joined = "" if unit == "ratio" else f" {unit}"
    return f"{value:.{digits}f}{joined}"


def heading() -> str:
    return _aligned(HEADINGS) + "  note"


def line(row: Row) -> str:
    """One row of the table."""
    if row.figure is None:
        return f"{row.model:<{WIDTHS[0]}} {row.label:<{WIDTHS[1]}} not measured: {row.missing}"
    best, median, first, share, note = cells(row.figure, row)
    return f"{_aligned((row.model, row.label, best, median, first, share))}  {note}".rstrip()


def cells(figure: Figure, row: Row) -> tuple[str, str, str, str, str]:
    """Best, median, first, share and note of a row that has a figure."""
    first = "" if figure.first is None else number(figure.first, figure.unit)
    share = "" if row.share is None else f"{row.share:.2f}"
    of = f"of {row.limit}" if row.share is not None else ""
    note = "; ".join(part for part in (of, figure.note) if part)
    return number(figure.best, figure.unit), number(figure.median, figure.unit), first, share, note


def machine(facts: Mapping[str, str]) -> Sequence[str]:
    return [f"{name:<12} {value}" for name, value in facts.items()]


def _aligned(texts: Sequence[str]) -> str:
    left = [f"{text:<{width}}" for text, width in zip(texts[:2], WIDTHS[:2], strict=True)]
    right = [f"{text:>{width}}" for text, width in zip(texts[2:], WIDTHS[2:], strict=True)]
    return " ".join(left + right)
