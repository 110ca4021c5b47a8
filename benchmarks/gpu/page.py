"""``python -m benchmarks.gpu.page FILE.json docs/benchmarks.md [PART]``: a run's result as a part of a page.

Decides how a result reads in Markdown. Only what stands between the two markers of the part is replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.gpu import table
from benchmarks.gpu.words import Result, Row

PART: Final = "gpu"
SIZES: Final = {
    "full": "full sizes",
    "quick": "full sizes, few repeats, without the largest model",
    "toy": "TOY SIZES IN CPU MEMORY: this shows that the script runs, and nothing else",
}


def render(result: Result) -> str:
    """The part of the page that one run makes."""
    return "\n".join(_lines(result))


def placed(page: str, text: str, part: str = PART) -> str:
    """``page`` with ``text`` between the markers of ``part``; raises ValueError where it has none."""
    opening, closing = f"<!-- {part}: begin -->", f"<!-- {part}: end -->"
    before, begin, rest = page.partition(opening)
    _, end, after = rest.partition(closing)
    if not begin or not end:
        raise ValueError(f"the page has no {opening} ... {closing}")
    return f"{before}{opening}\n{text}\n{closing}{after}"


def _lines(result: Result) -> Iterator[str]:
    yield f"One run of {result.seconds:.0f} s, {result.date}, {SIZES[result.size]}."
    yield ""
    yield "| machine | |"
    yield "|---|---|"
    for name, value in result.machine.items():
        yield f"| {_escaped(name)} | {_escaped(value)} |"
    for section, rows in groupby(result.rows, lambda row: row.section):
        yield from ("", f"### {section[:1].upper()}{section[1:]}", "")
        yield from _section(list(rows))


def _section(rows: Sequence[Row]) -> Iterator[str]:
    measured = [row for row in rows if row.figure is not None]
    if measured:
        yield "| model | what | best | median | first | share | |"
        yield "|---|---|---|---|---|---|---|"
    for row in measured:
        assert row.figure is not None
        shown = (row.model, row.label, *table.cells(row.figure, row))
        yield f"| {' | '.join(_escaped(text) for text in shown)} |"
    missing = [row for row in rows if row.figure is None]
    if missing:
        yield from ("", "Not measured:", "")
        yield from (f"- {_escaped(row.label)}: {_escaped(row.missing)}" for row in missing)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: Sequence[str]) -> None:
    """Write the result in one file into the page in the other."""
    if len(arguments) not in (2, 3):
        sys.exit("usage: python -m benchmarks.gpu.page FILE.json PAGE.md [PART]")
    result = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=Result)
    page = Path(arguments[1])
    page.write_text(placed(page.read_text(), render(result), *arguments[2:]))


if __name__ == "__main__":
    main(sys.argv[1:])
