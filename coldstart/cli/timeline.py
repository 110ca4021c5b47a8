"""A cold start as rows of a timeline: what a trace would show, from the journal alone.

Decides which rows there are and what each says. Pure; how rows are drawn is ``trace.py``'s. Names and reasons come
from others: whoever prints them must make them visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from coldstart.chronicle.starts import ColdStart, Loan, Stretch, Transfer
from coldstart.cli.output import seconds, size
from coldstart.phases.states import STORAGE, Phase

Tone = Literal["phase", "move", "lend", "trouble", "note", "good", "bad"]

_ENDS: dict[str, Tone] = {Phase.SERVE.value: "good", Phase.FAILED.value: "bad", Phase.GONE.value: "note"}


class Row(NamedTuple):
    """Something that lasted, or happened: seconds since the cold start began. ``end`` is None while it goes on."""

    begin: float
    end: float | None
    label: str
    detail: str
    tone: Tone
    depth: int = 0

    @property
    def lasted(self) -> bool:
        """Whether it has a length; else it is a moment."""
        return self.end is None or self.end > self.begin


def horizon(start: ColdStart) -> float:
    """Seconds that the timeline shows: until SERVE or the end, or as far as has been heard."""
    if start.seconds is not None:
        return start.seconds
    return max(start.heard - start.began, 0.001)


def rows_of(start: ColdStart, others: Sequence[ColdStart] = ()) -> list[Row]:
    """The rows of ``start``, in the order in which they began, with what its sources say of it in ``others``."""
    until = horizon(start)
    rows = [Row(0.0, start.built, "build", "", "phase")] if start.built > 0 else []
    phases = _phases(start)
    rows += [_phase(start, stretch) for stretch in phases]
    rows += [_transfer(start, each) for each in start.transfers]
    rows += [row for other in others for loan in other.loans if (row := _loan(start, other, loan)) is not None]
    rows += _troubles(start)
    told = [row for row in rows if row.begin <= until + 0.001]
    return sorted(told, key=_place)


def _place(row: Row) -> tuple[float, bool, int]:
    """By time; what ends a phase comes before the phase that begins with it."""
    return round(row.begin, 4), row.tone not in ("trouble", "note"), row.depth


def summary(start: ColdStart) -> str:
    """How it went, in a line."""
    after = "after" if start.outcome == "failed" else "in"
    took = "" if start.seconds is None else f" {after} {seconds(start.seconds)}"
    origins = ", ".join(f"{size(nbytes)} from {source}" for source, nbytes in start.sources.items())
    match start.outcome:
        case "failed":
            return f"failed{took}: {start.reason or 'nobody has said why'}"
        case "running":
            where = f" in {start.phase}" if start.phase else ""
            return f"running{where}, as far as has been heard{f'; {origins}' if origins else ''}"
        case "cancelled":
            return f"cancelled{took}"
        case _:
            since = "served" if start.outcome == "gone" else "serves"
            return f"{since}{took}, path {start.path}{f': {origins}' if origins else ''}"


def facts(start: ColdStart) -> list[str]:
    """Names and places, one a line; what is not known is left out."""
    found = [f"cold start {start.start}{f', trace {start.trace}' if start.trace else ''}"]
    found.append(f"{start.model or start.shard}{f' on {start.host}' if start.host else ''}")
    if start.group:
        found.append(f"rank {start.index} of {start.size} in group {start.group}")
    if start.lost or start.unknown:
        found.append(f"{start.lost} lines of its journal are lost, {start.unknown} cannot be read by this version")
    return found


def lent(start: ColdStart) -> list[str]:
    """To whom it lent since, one a line."""
    return [
        f"lent to {loan.joiner} over {loan.transport} for {seconds(loan.end - loan.begin)}: {loan.outcome}"
        for loan in start.loans
    ]


def _phases(start: ColdStart) -> list[Stretch]:
    """One for each phase of each attempt, whatever states it went through; the states' last is kept."""
    found: list[Stretch] = []
    for each in start.phases:
        before = found[-1] if found else None
        if before is not None and (before.phase, before.attempt) == (each.phase, each.attempt):
            found[-1] = Stretch(
                each.phase, each.state, each.attempt, each.source or before.source, before.begin, each.end
            )
        else:
            found.append(each)
    return found


def _phase(start: ColdStart, stretch: Stretch) -> Row:
    begin = stretch.begin - start.began
    if (tone := _ENDS.get(stretch.phase)) is not None:
        return Row(begin, begin, stretch.phase, _end(start, stretch.phase), tone)
    end = None if stretch.end is None else stretch.end - start.began
    return Row(begin, end, stretch.phase, _said(start, stretch), "phase")


def _said(start: ColdStart, stretch: Stretch) -> str:
    waits = [each for each in start.phases if (each.attempt, each.state) == (stretch.attempt, "Waiting")]
    if waits and stretch.phase == Phase.DISCOVER.value:
        leader = next((each.source for each in waits if each.source), "")
        return f"waits for {leader}, which reads storage" if leader else "in line: every source is busy"
    if stretch.source and stretch.source != STORAGE:
        return f"attempt {stretch.attempt}, {stretch.source}"
    return f"attempt {stretch.attempt}"


def _end(start: ColdStart, phase: str) -> str:
    if phase == Phase.FAILED.value:
        return start.reason
    if phase == Phase.SERVE.value and start.total:
        return f"{size(start.total)} verified"
    return ""


def _transfer(start: ColdStart, each: Transfer) -> Row:
    label = "read storage" if each.source == STORAGE else f"pull from {each.source}"
    end = None if each.end is None else each.end - start.began
    parts = [f"{size(each.nbytes)} at {each.rate / 1e9:.2f} GB/s"] if each.nbytes and each.rate else []
    if each.transport and each.source != STORAGE:
        route = each.route if each.route not in ("", each.transport) else ""
        parts.append(f"over {each.transport}{f' ({route})' if route else ''}")
    if each.link:
        parts.append(f"link {each.link / 1e9:.2f} GB/s")
    if each.leading:
        parts.append("for the whole fleet")
    if each.outcome not in ("", "ok"):
        parts.append(each.outcome)
    elif each.end is None:
        parts.append("goes on")
    return Row(each.begin - start.began, end, label, ", ".join(parts), "move", 1)


def _loan(start: ColdStart, other: ColdStart, loan: Loan) -> Row | None:
    """The source's side of a pull."""
    if loan.joiner != start.worker or loan.start != start.start:
        return None
    served = None if other.seconds is None else other.began + other.seconds
    relay = served is None or loan.begin < served
    detail = f"{loan.outcome}{', while it still received itself' if relay else ''}"
    return Row(loan.begin - start.began, loan.end - start.began, f"{other.worker} lends", detail, "lend", 1)


def _troubles(start: ColdStart) -> list[Row]:
    """Refusals and marks; a detour only where nothing else says why."""
    rows: list[Row] = []
    told: set[str] = set()
    for refusal in start.refusals:
        at = refusal.at - start.began
        told.add(f"{refusal.source}: {refusal.how} ({refusal.reason})")
        rows.append(Row(at, at, f"{refusal.source} {refusal.how}", refusal.reason, "trouble", 1))
    for mark in start.marks:
        at = mark.at - start.began
        said = f"{mark.source}: {mark.reason}" if mark.source else mark.reason
        if mark.kind == "detour" and said in told:
            continue
        told.add(said)
        label = {"detour": "detour", "stalled": "stall", "weighed": "estimate"}.get(mark.kind, mark.kind)
        rows.append(Row(at, at, label, said, "note" if mark.kind in ("verdict", "weighed") else "trouble", 1))
    return rows
