"""``coldstart trace``: the timeline of a cold start, from the journal in the store, without any collector.

Decides which cold start is meant and how its rows are drawn: bars on a terminal that is wide enough, columns of text
elsewhere. It only looks. What the rows say is ``timeline.py``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import anyio
import msgspec
from rich.cells import cell_len
from rich.text import Text

from coldstart.chronicle.starts import ColdStart, Path
from coldstart.cli import journals, timeline
from coldstart.cli.output import STDOUT, emit, say, seconds, size, table, visible
from coldstart.cli.timeline import Row, Tone
from coldstart.errors import ConfigError

COLUMNS = (
    "began", "worker", "cold start", "trace", "model", "outcome", "path", "took>", "bytes>", "sources", "detours>",
)  # fmt: skip
LEAST_PREFIX = 4
"""Digits of an id that may stand for it."""
LEAST_BAR, MOST_BAR = 24, 72
MOST_LENT = 20
MOST_LISTED = 100

_TONES: dict[Tone, str] = {
    "phase": "cyan",
    "move": "green",
    "lend": "blue",
    "trouble": "yellow",
    "note": "dim",
    "good": "bold green",
    "bad": "bold red",
}


class Told(msgspec.Struct, frozen=True):
    """One cold start as ``--json`` tells it, with what follows from it. Moments in seconds of the epoch."""

    path: Path
    phase: str
    detours: tuple[str, ...]
    start: ColdStart


def run(redis: str | None, asked: str, *, last: bool, listed: bool, json: bool) -> None:
    """The command; raises ConfigError or BusError for ``main`` to print."""
    if sum((bool(asked), last, listed)) > 1:
        raise ConfigError("a cold start, --last and --list exclude each other", advice="give one of them")
    chronicle, nothing = anyio.run(journals.survey, redis)
    starts = chronicle.starts
    if not starts and (listed or not (asked or last)):
        emit({"starts": []}) if json else say(f"no cold start is known: {nothing}")
        return
    if not starts:
        raise ConfigError(f"no cold start is known: {nothing}", advice="give --redis URL of the fleet's store")
    if not (asked or last):
        emit({"starts": [_told(start) for start in starts]}) if json else _list(starts)
        return
    chosen = starts[-1:] if last else find(starts, asked)
    if json:
        emit({"starts": [_told(start) for start in chosen]})
        return
    for number, start in enumerate(chosen):
        if number:
            say("")
        _draw(start, starts)


def find(starts: Sequence[ColdStart], asked: str) -> Sequence[ColdStart]:
    """Those that are meant: a worker's last, all ranks of a group, or all in a trace.

    Raises:
        ConfigError: none is, or what is given stands for several.
    """
    if named := [start for start in starts if start.worker == asked]:
        return named[-1:]
    if ranks := [start for start in starts if start.group == asked]:
        return sorted(ranks, key=lambda start: (start.index, start.began))
    prefix = asked.lower() if len(asked) >= LEAST_PREFIX else "?"
    found = [start for start in starts if start.start.startswith(prefix) or start.trace.startswith(prefix)]
    if not found:
        advice = "coldstart trace --list shows what there is"
        raise ConfigError(f"no cold start in the journal is called {asked!r}", advice=advice)
    ids = sorted({start.trace or start.start for start in found})
    if len(ids) > 1:
        raise ConfigError(f"{asked!r} stands for {len(ids)} ids: {', '.join(ids[:3])}", advice="give more of one")
    return found


def _told(start: ColdStart) -> Told:
    return Told(start.path, start.phase, start.detours, start)


def _list(starts: Sequence[ColdStart]) -> None:
    table("", COLUMNS, [_cells(start) for start in starts[-MOST_LISTED:]])
    if len(starts) > MOST_LISTED:
        say(f"and {len(starts) - MOST_LISTED} before these; --json tells all")


def _cells(start: ColdStart) -> tuple[str, ...]:
    return (
        _moment(start.began),
        start.worker,
        start.start,
        start.trace[:12] or "-",
        start.model or start.shard[:8],
        start.outcome,
        start.path,
        "-" if start.seconds is None else seconds(start.seconds),
        size(sum(start.sources.values())),
        ",".join(start.sources) or "-",
        str(len(start.detours)),
    )


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(max(at, 0.0), UTC):%Y-%m-%d %H:%M:%S}"


# ------------------------------------------------------------------------------------------ the timeline


def _draw(start: ColdStart, starts: Sequence[ColdStart]) -> None:
    say(f"{start.worker} {timeline.summary(start)}")
    heard = f", last heard of {_moment(start.heard)}" if start.outcome == "running" else ""
    for fact in (*timeline.facts(start), f"began {_moment(start.began)} UTC by the store's clock{heard}"):
        say(f"  {fact}")
    say("")
    rows, until = timeline.rows_of(start, starts), timeline.horizon(start)
    labels = [visible(f"{'  ' * row.depth}{row.label}") for row in rows]
    wide = max((cell_len(label) for label in labels), default=0)
    detailed = max((cell_len(_took(row)) for row in rows), default=0)
    said = max((cell_len(visible(row.detail)) for row in rows), default=0)
    room = STDOUT.width - wide - detailed - min(said, 48) - 8
    if STDOUT.is_terminal and room >= LEAST_BAR:
        for row, label in zip(rows, labels, strict=True):
            _bar(row, label.ljust(wide), until, min(room, MOST_BAR), detailed)
    else:
        cells = [(f"{row.begin:.3f} s", _took(row), "  " * row.depth + row.label, row.detail) for row in rows]
        table("", ("at>", "took>", "what", ""), cells)
    if loans := timeline.lent(start):
        say("")
        for loan in loans[:MOST_LENT]:
            say(f"  {loan}")
        if len(loans) > MOST_LENT:
            say(f"  and {len(loans) - MOST_LENT} times more")


def _took(row: Row) -> str:
    if row.end is None:
        return "..."
    return seconds(row.end - row.begin) if row.lasted else ""


def _bar(row: Row, label: str, until: float, width: int, detailed: int) -> None:
    scale = width / until
    first = min(int(row.begin * scale), width - 1)
    end = until if row.end is None else min(row.end, until)
    length = max(1, min(round(end * scale), width) - first) if row.lasted else 1
    sign = "\u2501" if row.lasted else "\u25c6"
    text = Text(f"{label}  ", style=_TONES[row.tone] if row.tone in ("good", "bad") else "")
    text.append(f"{' ' * first}{sign * length}{' ' * (width - first - length)}  ", style=_TONES[row.tone])
    text.append(f"{_took(row):>{detailed}}  ", style="dim")
    text.append(visible(row.detail), style="yellow" if row.tone == "trouble" else "")
    STDOUT.print(text)
