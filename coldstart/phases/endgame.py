"""The end of a transfer from several sources: one has nothing to do any more, while another one is slow.

Decides which of them is worth waiting for. Nothing is asked of two at once, so a pull is ended instead, for a source
that would bring the same again much sooner: when that is, and why, is in ``coldstart.portions``. How a further source
is left is in ``aside.py``, how the first one in ``transfer.py``.
"""

from __future__ import annotations

from coldstart import portions
from coldstart.phases.states import Further, Transferring
from coldstart.plan import Chunks


def outrun(state: Transferring, at: float) -> Further | None:
    """The slowest of the further sources, where one that has nothing to do makes it not worth waiting for."""
    slowest = _slowest(state, at)
    if slowest is None or state.unasked:
        return None
    ahead = max([0.0 if state.pulling else state.brought.rate_while_it_came, *_idle_rates(state)])
    if not portions.outrun(_owed(state, slowest.pulling), _rate(slowest, at), ahead):
        return None
    return slowest


def outruns(state: Transferring, at: float) -> bool:
    """Whether the further sources, which all have nothing to do, make the first one not worth waiting for.

    Not as long as one of them is at work: with the first one all are left. A joiner that has no more tries, or whose
    group has agreed on a source, waits for it nevertheless.
    """
    journey = state.journey
    if not state.further or any(each.pulling or each.brought is None for each in state.further) or state.unasked:
        return False
    if journey.accord is not None or journey.tries >= journey.limits.sources:
        return False
    if state.transport not in journey.abortable:
        return False
    ahead = max(_idle_rates(state), default=0.0)
    return portions.outrun(_owed(state, state.pulling), state.brought.rate(at), ahead)


def _slowest(state: Transferring, at: float) -> Further | None:
    """Of those that are at work and whose pulls can be ended, the one that will be at it longest."""
    slowest, longest = None, 0.0
    for each in state.further:
        rate = _rate(each, at)
        if each.ending or not each.pulling or not rate or each.transport not in state.journey.abortable:
            continue
        seconds = _owed(state, each.pulling) / rate
        if seconds > longest:
            slowest, longest = each, seconds
    return slowest


def _idle_rates(state: Transferring) -> list[float]:
    return [
        each.brought.rate_while_it_came
        for each in state.further
        if each.brought is not None and not (each.pulling or each.ending)
    ]


def _rate(other: Further, at: float) -> float:
    return 0.0 if other.brought is None else other.brought.rate(at)


def _owed(state: Transferring, pulling: Chunks) -> int:
    return len(pulling & state.journey.missing) * state.journey.chunk_bytes
