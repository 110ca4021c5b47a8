"""What a journal tells, one thing after the other, as ``coldstart journal`` shows it.

Decides which things there are and what each is called. Pure; names and reasons come from others, and are made visible
where they are printed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from coldstart.chronicle.starts import ColdStart, Loan, Transfer
from coldstart.cli.output import seconds, size
from coldstart.phases.states import STORAGE, Phase


class Item(msgspec.Struct, frozen=True):
    """Something that happened ``at`` a moment (seconds of the epoch, on the store's clock) in one cold start.

    It is the ``number``-th of its ``kind`` there: that stays so, while moments and words may be known better later.
    ``late``: something that happened after it has been shown before it.
    """

    at: float
    worker: str
    start: str
    shard: str
    kind: str
    words: str
    number: int = 0
    late: bool = False

    @property
    def key(self) -> tuple[str, str, int]:
        """What tells it from all others."""
        return self.start, self.kind, self.number


def items(starts: Iterable[ColdStart]) -> list[Item]:
    """Everything, in the order in which it happened."""
    found: list[Item] = []
    for start in starts:
        count: Counter[str] = Counter()
        for at, kind, words in _of(start):
            found.append(Item(at, start.worker, start.start, start.shard, kind, words, count[kind]))
            count[kind] += 1
    return sorted(found, key=lambda item: item.at)


def _of(start: ColdStart) -> Iterator[tuple[float, str, str]]:
    where = f" on {start.host}" if start.host else ""
    group = f", rank {start.index} of {start.size} in group {start.group}" if start.group else ""
    yield start.began, "began", f"{start.model or start.shard}{where}{group}"
    before = ""
    for stretch in start.phases:
        told = f"{stretch.phase} {stretch.attempt}"
        if told != before:
            before = told
            yield stretch.begin, stretch.phase, _phase(start, stretch.phase, stretch.source)
    for each in start.transfers:
        yield each.begin, "pulls", _begun(each)
        if each.end is not None:
            yield each.end, "pulled", _ended(each)
    for refusal in start.refusals:
        yield refusal.at, refusal.how, f"{refusal.source}: {refusal.reason}"
    for mark in start.marks:
        yield mark.at, mark.kind, f"{mark.source}: {mark.reason}" if mark.source else mark.reason
    for loan in start.loans:
        yield loan.end, "lent", _lent(loan)
    if start.lost or start.unknown:
        lost = f"{start.lost} lines are lost, {start.unknown} cannot be read by this version"
        yield start.heard, "incomplete", lost


def _phase(start: ColdStart, phase: str, source: str) -> str:
    match phase:
        case Phase.SERVE.value:
            origins = ", ".join(f"{size(nbytes)} from {source}" for source, nbytes in start.sources.items())
            took = "" if start.seconds is None else f" after {seconds(start.seconds)}"
            return f"path {start.path}{took}{f': {origins}' if origins else ''}"
        case Phase.FAILED.value:
            return start.reason or "nobody has said why"
        case _:
            return source


def _begun(each: Transfer) -> str:
    what = "storage" if each.source == STORAGE else f"{each.source} over {each.transport}"
    return f"{what}, for the whole fleet" if each.leading else what


def _ended(each: Transfer) -> str:
    rate = f" at {each.rate / 1e9:.2f} GB/s" if each.nbytes and each.rate else ""
    outcome = "" if each.outcome in ("", "ok") else f": {each.outcome}"
    return f"{size(each.nbytes)} from {each.source}{rate}{outcome}"


def _lent(loan: Loan) -> str:
    return f"to {loan.joiner} over {loan.transport} for {seconds(loan.end - loan.begin)}: {loan.outcome}"
