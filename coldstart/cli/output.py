"""How the command line speaks: for people on a terminal, in plain lines in a pipe, or in JSON.

Decides form, never content. Results go to stdout; progress and logs go to stderr, so that a
pipe gets results only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from coldstart.report import Progress as Step

STDOUT = Console(highlight=False, soft_wrap=True)
STDERR = Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """One line of result."""
    STDOUT.print(text, markup=False)


def note(text: str) -> None:
    """One line beside the result."""
    STDERR.print(text, markup=False)


def emit(value: object) -> None:
    """One JSON value on a line of its own, at once."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: drawn on a terminal, columns of text in a pipe. Columns named ``...>`` are right-aligned."""
    if not STDOUT.is_terminal:
        _plain(title, columns, rows)
        return
    drawn = Table(title=title or None, title_justify="left")
    for column in columns:
        drawn.add_column(column.rstrip(">"), justify="right" if column.endswith(">") else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    STDOUT.print(drawn)


def size(nbytes: float) -> str:
    """Bytes as people read them, in powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(nbytes) < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def seconds(value: float) -> str:
    """A duration as people read it."""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


class Ticker:
    """Shows the progress of one cold start: a bar on a terminal, a line per phase in a pipe."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._phase = self._reason = ""
        self._bar: Progress | None = None
        self._task = TaskID(0)
        if STDERR.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                console=STDERR,
                transient=True,
            )
            self._task = self._bar.add_task("starting", total=None)
            self._bar.start()

    def __call__(self, step: Step) -> None:
        """Take one progress report in."""
        where = f"{step.phase.value} from {step.source}" if step.source else step.phase.value
        if self._bar is not None:
            self._bar.update(
                self._task, description=where, completed=step.bytes_verified, total=step.bytes_total
            )
        elif step.phase.value != self._phase:
            reason = f" ({step.reason})" if step.reason and step.reason != self._reason else ""
            done = f"{size(step.bytes_verified)} of {size(step.bytes_total)} verified"
            note(f"{step.seconds:8.3f} s  {self._worker}  {where}  {done}{reason}")
        self._phase, self._reason = step.phase.value, step.reason

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()


def _plain(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    heads = [column.rstrip(">") for column in columns]
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    if title:
        say(title)
    for row in (heads, *rows):
        cells = [
            cell.rjust(width) if column.endswith(">") else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        say("  ".join(cells).rstrip())
