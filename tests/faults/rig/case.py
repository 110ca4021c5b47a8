"""One case: which fault, where, what must come of it, how soon; and the table of all of them.

A case says how many seconds its fault may cost by the product's own limits. What a test asserts is
that, times a factor, plus a constant: other processes share the machine. :meth:`Case.clock` starts
with the fault. The table shows both and what was measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import msgspec

FACTOR = 1.5
SLACK = 4.0
BEGIN, END = "<!-- cases: begin -->", "<!-- cases: end -->"


class Case(msgspec.Struct):
    """``seconds`` is what the fault may cost by the limits, storage's read included."""

    fault: str
    where: str
    outcome: str
    seconds: float
    group: str = ""
    variant: str = ""
    measured: float | None = None
    number: int = 0
    """Where it stands among all tests of the run."""
    passed: bool = True

    @property
    def bound(self) -> float:
        """What is asserted, in seconds."""
        return FACTOR * self.seconds + SLACK

    @contextmanager
    def clock(self) -> Iterator[None]:
        """From the fault to the outcome; TimeoutError where it takes too long."""
        began = anyio.current_time()
        with anyio.fail_after(self.bound):
            yield
        self.measured = anyio.current_time() - began


def table(cases: Iterable[Case]) -> str:
    """Markdown, one table per group."""
    lines: list[str] = []
    group = None
    for case in cases:
        if case.group != group:
            group = case.group
            lines += ["", f"### {group}", "", "| fault | injected | asserted | limit | bound | measured |"]
            lines += ["|---|---|---|---|---|---|"]
        fault = f"{case.fault} ({case.variant})" if case.variant else case.fault
        measured = "not met" if case.measured is None or not case.passed else f"{case.measured:.1f} s"
        limits = f"{case.seconds:g} s | {case.bound:.1f} s"
        lines.append(f"| {fault} | {case.where} | {case.outcome} | {limits} | {measured} |")
    return "\n".join(lines).strip() + "\n"


def rewrite(path: Path, cases: Iterable[Case]) -> None:
    """Put the table between the marks of a document."""
    pattern = re.compile(f"({re.escape(BEGIN)}\n).*({re.escape(END)})", re.DOTALL)
    text, count = pattern.subn(lambda found: f"{found[1]}\n{table(cases)}\n{found[2]}", path.read_text())
    assert count == 1, f"{path} has no marks for the table"
    path.write_text(text)
