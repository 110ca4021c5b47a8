"""Further sources for a lone joiner: begun where those that there are are the bottleneck, ended where they were not.

Decides at which moments a policy (:data:`coldstart.policies.AtOnce`) is asked from how many sources to receive, and
what comes of its answer. Only transfers from a complete source are widened, whose digests are known and whose pull can
grow: those that follow a loader get more by standing in a crowd (``aside.py``), and ranks of a group keep the
source on which they have agreed. Who else has a free slot is asked for it without standing in line: whoever has
nothing yet goes first.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from coldstart.effects import Effect
from coldstart.phases import aside, moves
from coldstart.phases.aside import Aside
from coldstart.phases.states import Further, Transferring
from coldstart.policies import MOST, Flow
from coldstart.portions import NARROW

AGAIN = 5.0
"""Seconds after which more sources are looked for again: before, nobody had a free slot."""


def consider(state: Transferring, at: float) -> Aside:
    """Bytes have come: seek further sources, or end those that were no use."""
    if not state.further:
        if not state.widenable:
            return state, ()
        rate = state.brought.rate(at)
        return _widened(state, _wanted(state, 1, rate, at - state.brought.since) if rate else 1, rate, at)
    giving = [each for each in state.further if each.brought is not None]
    if not _tells(state, giving, at):
        return state, ()
    watched = at - state.since
    rate = (state.pace.landed - state.mark) / watched
    wanted = _wanted(state, 1 + len(giving), rate, watched)
    if wanted <= len(giving):
        return _narrowed(state, giving[wanted - 1 :])
    return _widened(state, wanted, rate, at) if state.widenable else (state, ())


def _tells(state: Transferring, giving: Sequence[Further], at: float) -> bool:
    """Whether what comes from all together says anything: not in a crowd, nor once one has nothing to do."""
    if not state.alone or not giving or not state.pulling or at <= state.since:
        return False
    return all(each.pulling and not each.ending for each in giving)


def _widened(state: Transferring, wanted: int, rate: float, at: float) -> Aside:
    """Seek the next one; those after it are sought one by one, as soon as a slot of the last one is ours."""
    sources = 1 + len(state.further)
    if wanted <= sources or any(each.brought is None for each in state.further):
        return state, ()
    if at < state.sought + AGAIN and state.sought:
        return state, ()
    return moves.seek_further(replace(state, part=0, alone=state.alone or rate, sought=at, wanted=wanted))


def _narrowed(state: Transferring, last: Sequence[Further]) -> Aside:
    """End the last ones, and whoever is sought or agreed with; a pull that cannot be ended goes on."""
    effects: tuple[Effect, ...] = ()
    for other in state.further[::-1]:
        if other.brought is None or (other in last and other.transport in state.journey.abortable):
            state, more = aside.leave(state, other, NARROW)
            effects = (*effects, *more)
    return state, effects


def _wanted(state: Transferring, sources: int, rate: float, watched: float) -> int:
    journey = state.journey
    left = len(journey.missing) * journey.chunk_bytes
    flow = Flow(sources, rate, state.alone, journey.link, state.source.cap, left, watched)
    try:
        return max(1, min(int(journey.at_once(flow)), MOST))
    except Exception:  # an operator's function may raise anything; one that breaks has no say
        return sources
