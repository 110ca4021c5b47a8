"""Puts cold starts together again from what the journal holds of them.

Decides what is made of lines that are lost, that come twice or in another order, and of clocks that differ:

- Lines have numbers: a number that came already is left out, order is that of numbers, and gaps are counted. A phase
  whose end is lost ends where the next one begins; a transfer of which only the end is known began as long before as
  it says, and one whose end is lost ends with its attempt.
- A worker's clock is never compared with another's. A sheet says how long after its cold start began it was sent; the
  store says when it arrived. The difference is when the cold start began, on the store's clock, and the least of all
  the sheets' is the best: no sheet arrives before it was sent. What is left is how long the quickest write took,
  milliseconds; and, for what a worker lent days later, how much its clock drifts.

Pure. What it returns is in ``starts.py``; where the entries come from is ``Bus.recorded``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import msgspec

from coldstart.chronicle import lines
from coldstart.chronicle.lines import AnyLine, Sheet
from coldstart.chronicle.starts import ColdStart, Loan, Mark, Outcome, Refusal, Stretch, Transfer
from coldstart.errors import BadMessage
from coldstart.phases.states import Phase
from coldstart.ports import Recorded

_OUTCOMES: dict[str, Outcome] = {
    Phase.SERVE.value: "serving",
    Phase.FAILED.value: "failed",
    Phase.GONE.value: "gone",
}


class _Heard:
    """What has been heard of one cold start."""

    def __init__(self, sheet: Sheet, at: float) -> None:
        self.header = sheet
        self.began = at - sheet.sent
        self.at = at
        self.lines: dict[int, AnyLine] = {}
        self.numbers: set[int] = set()

    def take(self, sheet: Sheet, known: Iterable[tuple[int, AnyLine]], at: float) -> None:
        self.began = min(self.began, at - sheet.sent)
        self.at = max(self.at, at)
        self.numbers.update(range(sheet.first, sheet.first + len(sheet.lines)))
        for number, line in known:
            self.lines.setdefault(number, line)


class Chronicle:
    """All cold starts that entries tell of, in whatever order and however often these come.

    ``unreadable`` counts entries that are no sheet, or one of a later version.
    """

    def __init__(self) -> None:
        self._heard: dict[str, _Heard] = {}
        self.unreadable = 0

    def take(self, entries: Iterable[Recorded]) -> None:
        """Hear of more."""
        for entry in entries:
            try:
                sheet, known = lines.unpack(entry.body)
            except BadMessage:
                self.unreadable += 1
                continue
            heard = self._heard.setdefault(sheet.start, _Heard(sheet, entry.at))
            heard.take(sheet, known.items(), entry.at)

    @property
    def starts(self) -> tuple[ColdStart, ...]:
        """As they stand now, by the time at which they began."""
        return tuple(sorted(map(_told, self._heard.values()), key=lambda start: (start.began, start.start)))


class _Telling:
    """Folds the lines of one cold start, in the order of their numbers."""

    def __init__(self, began: float) -> None:
        self._began = began
        self.phases: list[Stretch] = []
        self.transfers: dict[int, Transfer] = {}
        self.refusals: list[Refusal] = []
        self.marks: list[Mark] = []
        self.loans: list[Loan] = []
        self.built = 0.0
        self.ends: list[lines.Ended] = []
        self.over: float | None = None
        self.verified = self.chunks = 0

    def tell(self, line: AnyLine) -> None:
        at = self._began + line.at
        match line:
            case lines.Entered():
                self._enter(line, at)
            case lines.Pulling(attempt=attempt, source=source, transport=transport, leading=leading):
                self.transfers[attempt] = Transfer(attempt, source, transport, at, None, leading=leading)
            case lines.Pulled():
                self._pulled(line, at)
            case lines.Refused(attempt=attempt, source=source, how=how, reason=reason):
                self.refusals.append(Refusal(at, attempt, source, how, reason))
            case lines.Stalled(attempt=attempt, source=source, reason=reason):
                self.marks.append(Mark(at, "stalled", reason, source, attempt))
            case lines.Corrupted(attempt=attempt, source=source, chunk=chunk):
                self.marks.append(Mark(at, "corrupted", f"chunk {chunk} has wrong bytes", source, attempt))
            case lines.Detoured(reason=reason):
                self.marks.append(Mark(at, "detour", reason))
            case lines.Decided():
                self.marks.append(Mark(at, "verdict", line.words))
            case lines.Weighed(waiting=waiting, storage=storage, decision=decision):
                expected = f"a peer {waiting:.3g} s, storage {storage:.3g} s: {decision}"
                self.marks.append(Mark(at, "weighed", expected))
            case lines.Ended():
                self.ends.append(line)
                self.over = line.at if self.over is None else self.over
                self._close(at)
            case lines.Lent(joiner=joiner, transport=transport, seconds=seconds, outcome=outcome):
                worker, _, start = joiner.rpartition(".")
                self.loans.append(Loan(worker or joiner, start, transport, at - seconds, at, outcome))
            case lines.Withheld(reason=reason):
                self.marks.append(Mark(at, "withheld" if reason else "lent again", reason))
            case _:
                assert_never(line)

    def _enter(self, line: lines.Entered, at: float) -> None:
        if not self.phases and line.attempt <= 1:
            self.built = line.at
        if self.phases and self.phases[-1].end is None:
            self.phases[-1] = msgspec.structs.replace(self.phases[-1], end=at)
        self._leave(line.attempt, at)
        self.verified, self.chunks = line.verified, line.chunks
        if line.phase in _OUTCOMES and self.over is None:
            self.over = line.at
        self.phases.append(Stretch(line.phase, line.state, line.attempt, line.source, at, None))

    def _leave(self, attempt: int, at: float) -> None:
        """Transfers of earlier attempts are over, whether or not anybody has said so."""
        for number, transfer in self.transfers.items():
            if transfer.end is None and 0 < number < attempt:
                self.transfers[number] = msgspec.structs.replace(transfer, end=at)

    def _pulled(self, line: lines.Pulled, at: float) -> None:
        self.transfers[line.attempt] = Transfer(
            line.attempt,
            line.source,
            line.transport,
            at - line.seconds,
            at,
            line.nbytes,
            line.moving,
            line.route,
            line.link,
            line.leading,
            line.outcome,
        )

    def _close(self, at: float) -> None:
        for number, transfer in self.transfers.items():
            if transfer.end is None:
                self.transfers[number] = msgspec.structs.replace(transfer, end=at)

    @property
    def outcome(self) -> Outcome:
        phases = [end.phase for end in self.ends]
        if not phases:
            return "running"
        if phases[-1] == Phase.GONE.value and Phase.SERVE.value not in phases:
            return "cancelled" if not any(each.phase == Phase.SERVE.value for each in self.phases) else "gone"
        return _OUTCOMES.get(phases[-1], "running")


def _told(heard: _Heard) -> ColdStart:
    telling, header = _Telling(heard.began), heard.header
    for number in sorted(heard.lines):
        telling.tell(heard.lines[number])
    first = telling.ends[0] if telling.ends else None
    last = next((end for end in reversed(telling.ends) if end.origins), first)
    return ColdStart(
        start=header.start,
        worker=header.worker,
        shard=header.shard,
        model=header.model,
        host=header.host,
        rank=header.rank,
        trace=header.trace,
        group=header.group,
        index=header.index,
        size=header.size,
        began=heard.began,
        heard=heard.at,
        built=telling.built,
        outcome=telling.outcome,
        seconds=telling.over,
        total=first.total if first is not None else 0,
        verified=telling.verified,
        chunks=telling.chunks,
        sources=dict(last.origins) if last is not None else _came(telling),
        phases=tuple(telling.phases),
        transfers=tuple(sorted(telling.transfers.values(), key=lambda each: each.begin)),
        refusals=tuple(telling.refusals),
        marks=tuple(telling.marks),
        loans=tuple(telling.loans),
        loaded=any(end.loaded for end in telling.ends),
        reason=next((end.reason for end in telling.ends if end.reason), ""),
        failure=next((end.failure for end in telling.ends if end.failure), ""),
        lost=_lost(heard.numbers),
        unknown=len(heard.numbers - heard.lines.keys()),
    )


def _came(telling: _Telling) -> dict[str, int]:
    """What transfers have brought, where nobody has summed it up yet."""
    came: dict[str, int] = {}
    for each in telling.transfers.values():
        if each.nbytes:
            came[each.source] = came.get(each.source, 0) + each.nbytes
    return came


def _lost(numbers: set[int]) -> int:
    """Lines before the last one that nobody has seen; the first is number 1."""
    return max(numbers) - len(numbers) if numbers else 0
