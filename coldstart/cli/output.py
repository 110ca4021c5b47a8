"""How the command line speaks: for people on a terminal, in plain lines in a pipe, or in JSON.

Decides form, never content. Results go to stdout; progress and logs go to stderr, so that a
pipe gets results only. Output is never what ends a command: a reader that leaves is nobody's
fault, and a disk that is full is said once (:class:`Stream`).
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO, cast

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from coldstart.report import Progress as Step

STDOUT = Console(highlight=False, soft_wrap=True, emoji=False)
STDERR = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
for _console in (STDOUT, STDERR):
    if _console.width < 1:  # COLUMNS=0, as of a terminal that does not know its size: nothing at all would be printed
        _console.width = 80


class Stream(io.TextIOBase):
    """A standard stream whose failure is not the program's: it falls silent instead of raising.

    Args:
        inner: the stream that was there; None where the process was started with it closed.
        number: its file descriptor.

    A reader that has left (``| head -1``) silences it without a word. Whatever else goes wrong, such
    as a full disk, is said once on stderr and kept in ``lost``.
    """

    def __init__(self, inner: TextIO | None, number: int) -> None:
        self.lost = ""
        self._inner = inner
        self._number = number
        self._encoding = (inner.encoding if inner is not None else "") or "utf-8"
        if inner is None and not _is_open(number):
            _to_nowhere(number)  # or the next socket would get this number, and be taken for the stream

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute in the stubs
        return self._encoding

    def write(self, text: str) -> int:
        """Write what can be written; what the encoding lacks is escaped."""
        writable = text.encode(self._encoding, "backslashreplace").decode(self._encoding)
        if self._inner is not None:
            try:
                self._inner.write(writable)
            except (OSError, ValueError) as error:
                self._fall_silent(error)
        return len(text)

    def flush(self) -> None:
        if self._inner is not None:
            try:
                self._inner.flush()
            except (OSError, ValueError) as error:
                self._fall_silent(error)

    def isatty(self) -> bool:
        try:
            return self._inner is not None and self._inner.isatty()
        except ValueError:
            return False

    def fileno(self) -> int:
        return self._number

    def writable(self) -> bool:
        return True

    def _fall_silent(self, error: OSError | ValueError) -> None:
        inner, self._inner = self._inner, None
        with suppress(OSError, ValueError):
            if inner is not None and inner.fileno() == self._number:
                _to_nowhere(self._number)  # the interpreter flushes once more when it ends
        if isinstance(error, ConnectionError | ValueError):  # the reader left; the stream was closed
            return
        self.lost = error.strerror or str(error)
        if self is not sys.stderr:
            note(f"output is lost: {self.lost}")


def guard() -> None:
    """Put a :class:`Stream` in the place of stdout and of stderr: all that a command prints goes through them."""
    if not isinstance(sys.stderr, Stream):
        sys.stderr = cast(TextIO, Stream(sys.stderr, 2))
    if not isinstance(sys.stdout, Stream):
        sys.stdout = cast(TextIO, Stream(sys.stdout, 1))


def redraws(console: Console) -> bool:
    """Whether what was printed can be drawn over: on a terminal, unless it is a dumb one."""
    return console.is_terminal and not console.is_dumb_terminal


def is_lost() -> bool:
    """Whether results could not be written, though somebody may want them."""
    return isinstance(sys.stdout, Stream) and bool(sys.stdout.lost)


def visible(text: str) -> str:
    """``text`` on one line: what could end the line, move the cursor or colour is shown as an escape."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def say(text: str) -> None:
    """One line of result, at once; past the console, which takes 0.1 ms to lay it out, and there may be many."""
    STDOUT.file.write(visible(text) + "\n")
    STDOUT.file.flush()


def note(text: str) -> None:
    """One line beside the result."""
    STDERR.print(visible(text), markup=False)


def emit(value: object) -> None:
    """One JSON value on a line of its own, at once."""
    try:
        line = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # a path that is not UTF-8
        line = json.dumps(msgspec.to_builtins(value))
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: drawn on a terminal that is wide enough for it, columns of text elsewhere.

    Columns named ``...>`` are right-aligned.
    """
    rows = [[visible(cell) for cell in row] for row in rows]
    heads = [column.rstrip(">") for column in columns]
    widths = [max(cell_len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    if not STDOUT.is_terminal or sum(widths) + 3 * len(widths) + 1 > STDOUT.width:
        _plain(title, columns, rows, widths)
        return
    drawn = Table(title=title or None, title_justify="left")
    for head, column in zip(heads, columns, strict=True):
        drawn.add_column(head, justify="right" if column.endswith(">") else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    STDOUT.print(drawn)


def _plain(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int]) -> None:
    if title:
        say(title)
    for row in ([column.rstrip(">") for column in columns], *rows):
        cells: list[str] = []
        for cell, width, column in zip(row, widths, columns, strict=True):
            pad = " " * (width - cell_len(cell))
            cells.append(pad + cell if column.endswith(">") else cell + pad)
        say("  ".join(cells).rstrip())


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


def age(value: float) -> str:
    """An age in its largest unit."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if value >= length:
            return f"{value / length:.0f} {unit}"
    return f"{value:.0f} s"


class Ticker:
    """Shows the progress of one cold start: a bar on a terminal, a line per phase in a pipe."""

    def __init__(self) -> None:
        self.worker = ""
        self._phase = self._reason = ""
        self._bar: Progress | None = None
        self._task = TaskID(0)
        if redraws(STDERR):
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
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
                self._task, description=visible(where), completed=step.bytes_verified, total=step.bytes_total
            )
        elif step.phase.value != self._phase:
            reason = f" ({step.reason})" if step.reason and step.reason != self._reason else ""
            done = f"{size(step.bytes_verified)} of {size(step.bytes_total)} verified"
            note(f"{step.seconds:8.3f} s  {self.worker}  {where}  {done}{reason}")
        self._phase, self._reason = step.phase.value, step.reason

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _to_nowhere(number: int) -> None:
    """Let a file descriptor lead to the null device, for child processes too."""
    null = os.open(os.devnull, os.O_RDWR)
    if null == number:
        os.set_inheritable(null, True)
    else:
        os.dup2(null, number)
        os.close(null)
