"""What the demo shows: one JSON object, or a table and a timeline for people."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from coldstart.cli.output import STDOUT, say, seconds, size, table
from coldstart.report import Report

WIDTH = 64
LETTERS = {
    "START": ".",
    "BUILD": "b",
    "DISCOVER": "d",
    "HANDSHAKE": "h",
    "TRANSFER": "T",
    "FALLBACK": "F",
    "VERIFY": "v",
    "SERVE": "=",
}
STYLES = {"T": "green", "F": "yellow", "=": "blue", "X": "bold red", "b": "dim", ".": "dim"}


class Row(msgspec.Struct, frozen=True):
    """One worker: where its weights came from, how long each phase took (seconds), how it ended.

    ``share`` is of what the link was seen to give, 0 where that is not known.
    """

    worker: str
    path: str
    sources: Sequence[str]
    bytes_peer: int
    bytes_storage: int
    gbps: float
    phases: dict[str, float]
    attempts: int
    verified: bool
    state: str
    detours: Sequence[str]
    error: str | None
    link_gbps: float = 0.0
    share: float = 0.0
    warnings: Sequence[str] = ()

    @classmethod
    def of(cls, name: str, report: Report | None, error: str) -> Row:
        if report is None:
            return cls(name, "none", (), 0, 0, 0.0, {}, 0, False, "FAILED", (), error or "did not serve")
        return cls(
            worker=name,
            path=report.path,
            sources=report.sources,
            bytes_peer=report.bytes_peer,
            bytes_storage=report.bytes_storage,
            gbps=round(report.gbps, 3),
            phases={phase: round(spent, 6) for phase, spent in report.phases.items()},
            attempts=len(report.attempts),
            verified=report.verified,
            state=report.state.value,
            detours=report.detours,
            error=report.error or error or None,
            link_gbps=round(report.link_gbps, 3),
            share=round(report.share, 3),
            warnings=report.warnings,
        )


class Kill(msgspec.Struct, frozen=True):
    """The planned failure: ``victim`` was SIGKILLed while ``joiner`` read from it."""

    victim: str
    joiner: str
    bytes_verified: int
    report: Report

    @property
    def read_storage(self) -> bool:
        return self.report.bytes_storage > 0


class Bar(msgspec.Struct, frozen=True):
    """A stretch of one worker's time: letters of :data:`LETTERS`, seconds since the demo began."""

    worker: str
    letter: str
    begin: float
    end: float


class Outcome(msgspec.Struct, frozen=True):
    """The demo's result; ``outcome`` is ``ok`` or says what did not hold."""

    outcome: str
    workers: Sequence[Row]
    storage_reads: int
    embeddings_equal: bool
    seconds: float
    checkpoint: str
    lend_cap_gbps: float
    kill: Kill | None
    timeline: Sequence[Bar]


def bars(
    members: Sequence[tuple[str, float, float | None, float | None, Report | None]], began: float, total: float
) -> list[Bar]:
    """Stretches of each process's time, from monotonic times and the reports' timelines.

    A restarted worker's second life is called ``w2.2``.
    """
    found: list[Bar] = []
    lives: dict[str, int] = {}
    for worker, started, served_at, killed_at, report in members:
        lives[worker] = lives.get(worker, 0) + 1
        name = worker if lives[worker] == 1 else f"{worker}.{lives[worker]}"
        end = min(killed_at or began + total, began + total)
        if report is None or served_at is None:
            found.append(Bar(name, ".", started - began, end - began))
            continue
        zero = served_at - report.seconds
        marks = [("START", started), *((mark.phase, zero + mark.at) for mark in report.timeline)]
        for (phase, at), after in zip(marks, [*(at for _, at in marks[1:]), end], strict=True):
            found.append(Bar(name, LETTERS.get(phase, "?"), at - began, after - began))
        if killed_at is not None:
            found.append(Bar(name, "X", killed_at - began, killed_at - began))
    return found


def show(outcome: Outcome) -> None:
    """The table and the timeline."""
    table(
        "",
        ("worker", "path", "source", "bytes>", "GB/s>", "of link>", "build>", "discover>", "handshake>", "transfer>",
         "fallback>", "verify>", "verified"),
        [_cells(row) for row in outcome.workers],
    )  # fmt: skip
    for row in outcome.workers:
        for detour in row.detours:
            say(f"  {row.worker}: {detour}")
        for warning in row.warnings:
            say(f"  {row.worker}: warning: {warning}")
    if outcome.kill is not None:
        say(
            f"{outcome.kill.victim} was killed when {outcome.kill.joiner} had verified "
            f"{size(outcome.kill.bytes_verified)} from it; {outcome.kill.joiner} kept them. "
            f"{outcome.kill.victim} was restarted."
        )
        say(f"w2 and w3 lend at most {outcome.lend_cap_gbps:.2f} GB/s here, so that there is a middle to kill in")
    _timeline(outcome)
    equal = "equal" if outcome.embeddings_equal else "DIFFERENT"
    say(f"storage reads: {outcome.storage_reads}; answers against the ordinarily loaded model: {equal}")
    say(f"{outcome.outcome} in {outcome.seconds:.1f} s")


def _cells(row: Row) -> tuple[str, ...]:
    spent = (
        seconds(row.phases[phase]) if phase in row.phases else "-"
        for phase in ("build", "discover", "handshake", "transfer", "fallback", "verify")
    )
    source = ", ".join(row.sources) or ("checkpoint" if row.bytes_storage else "-")
    total = size(row.bytes_peer + row.bytes_storage)
    share = f"{row.share:.2f}" if row.share else "-"
    return (row.worker, row.path, source, total, f"{row.gbps:.2f}", share, *spent, "yes" if row.verified else "NO")


def _timeline(outcome: Outcome) -> None:
    scale = WIDTH / max(outcome.seconds, 1e-9)
    say("")
    say(f"time, {outcome.seconds / WIDTH:.2f} s a column")
    lines: dict[str, list[str]] = {}
    # What takes less than a column must still be seen where bytes moved.
    for bar in sorted(outcome.timeline, key=lambda bar: bar.letter in "TFX"):
        line = lines.setdefault(bar.worker, [" "] * WIDTH)
        first = min(int(bar.begin * scale), WIDTH - 1)
        for column in range(first, max(first + 1, min(int(bar.end * scale), WIDTH))):
            line[column] = bar.letter
    for name, line in sorted(lines.items()):
        drawn = "".join(f"[{STYLES[c]}]{c}[/]" if c in STYLES else c for c in line)
        STDOUT.print(f"{name:>4} {drawn}")
    say("     . starting  b building  d discover  h handshake  T transfer  F storage  v verify  = serving  X killed")
