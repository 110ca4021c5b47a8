"""A second source for a lone joiner: begun where the first one is the bottleneck, ended where it was not.

Decides at which moments a policy (:data:`coldstart.policies.AtOnce`) is asked from how many sources to receive, and
what comes of its answer. Only transfers from a complete source are widened, whose digests are known and whose pull can
grow: those that follow a loader get more by standing in a crowd (``aside.py``), and ranks of a group keep the
source on which they have agreed. Who else has a free slot is asked for it without standing in line: whoever has
nothing yet goes first.
"""

from __future__ import annotations

from msgspec.structs import replace

from coldstart.phases import aside, moves
from coldstart.phases.aside import Aside
from coldstart.phases.states import Transferring
from coldstart.policies import Flow
from coldstart.portions import NARROW
from coldstart.ports import PARTS

AGAIN = 5.0
"""Seconds after which a second source is looked for again where nobody had a free slot."""


def consider(state: Transferring, at: float) -> Aside:
    """Bytes have come: seek a second source, or end the one that was no use."""
    if state.widenable:
        return _widened(state, at)
    if state.alone:
        return _narrowed(state, at)
    return state, ()


def _widened(state: Transferring, at: float) -> Aside:
    if at < state.sought + AGAIN and state.sought:
        return state, ()
    rate = state.brought.rate(at)
    if not rate or _wanted(state, 1, rate, 0.0, at - state.brought.since) < PARTS:
        return state, ()
    return moves.seek_second(replace(state, part=0, alone=rate, sought=at))


def _narrowed(state: Transferring, at: float) -> Aside:
    """Whether both together bring more than the first one did alone; once one has nothing to do, that says nothing."""
    second = state.second
    if second is None or second.brought is None or second.ending or not (state.pulling and second.pulling):
        return state, ()
    if second.transport not in state.journey.abortable:
        return state, ()
    watched = at - second.brought.since
    if watched <= 0:
        return state, ()
    rate = (state.pace.landed - second.mark) / watched
    if _wanted(state, PARTS, rate, state.alone, watched) >= PARTS:
        return state, ()
    return aside.leave(state, NARROW)


def _wanted(state: Transferring, sources: int, rate: float, before: float, watched: float) -> int:
    journey = state.journey
    left = len(journey.missing) * journey.chunk_bytes
    flow = Flow(sources, rate, before, journey.link, state.source.cap, left, watched)
    try:
        return journey.at_once(flow)
    except Exception:  # an operator's function may raise anything; one that breaks has no say
        return sources
