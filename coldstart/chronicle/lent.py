"""Turns the steps of a source into lines: a line for each grant when it has ended, and for what is withheld.

Decides what of lending others may read later. Pure, as ``noting.py``, which has the joiner's side and tells most: the
joiner says what it got, the source only for how long somebody could read there, and how that ended.
"""

from __future__ import annotations

from coldstart.chronicle import lines
from coldstart.chronicle.lines import AnyLine, words
from coldstart.effects import CloseGrant, OpenOffer
from coldstart.runner import Entry
from coldstart.source import Source


class SourceNotes:
    """Folds the steps of one source into lines: a line for each grant when it has ended.

    Args:
        began: monotonic seconds at which the worker's cold start began.
    """

    def __init__(self, began: float) -> None:
        self._began = began
        self._open: dict[str, tuple[float, OpenOffer]] = {}
        self._outcomes: dict[str, str] = {}

    def __call__(self, entry: Entry[Source]) -> tuple[AnyLine, ...]:
        """The lines of one step, in order."""
        at, found = max(0.0, round(entry.at - self._began, 6)), list[AnyLine]()
        if entry.before.why != entry.after.why:
            found.append(lines.Withheld(at=at, reason=words(entry.after.why)))
        for effect in entry.effects:
            match effect:
                case OpenOffer(transfer=transfer):
                    self._open[transfer] = (at, effect)
                case CloseGrant(transfer=transfer, outcome=outcome):
                    self._outcomes[transfer] = outcome
                case _:
                    pass
        kept = {grant.transfer for grant in entry.after.grants}
        return (*found, *[self._lent(transfer, at) for transfer in list(self._open) if transfer not in kept])

    def _lent(self, transfer: str, at: float) -> AnyLine:
        began, offer = self._open.pop(transfer)
        outcome = words(self._outcomes.pop(transfer, "offer failed"))
        return lines.Lent(
            at=at, joiner=offer.joiner, transport=offer.transport, seconds=at - began, outcome=outcome
        )
