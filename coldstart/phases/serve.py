"""SERVE and the ends: serving, draining, failed, gone.

Decides only when serving ends. Lending goes on in the source's own machine
(``coldstart.source``); a worker that serves does not depend on anybody.
"""

from __future__ import annotations

from coldstart.effects import StopLending
from coldstart.events import Drained, DrainRequested
from coldstart.phases import groups
from coldstart.phases.states import Draining, Failed, Gone, Move, Page, Serving


def drain_requested(state: Serving, event: DrainRequested, at: float) -> Move:
    return Draining(state.journey), (StopLending(),)


def drained(state: Draining | Serving, event: Drained, at: float) -> Move:
    return Gone(state.journey), ()


_LATE = (
    groups.CLAIM_ANSWERS
    | groups.TRUTH_ANSWERS
    | groups.OFFER_ANSWERS
    | groups.STATE_ANSWERS
    | groups.PUBLISH_ANSWERS
)
_PAST = groups.START | groups.CONNECT_ANSWERS | groups.PULL_REPORTS | groups.MEMORY_ANSWERS

PAGES = (
    Page(
        Serving,
        handled={DrainRequested: drain_requested, Drained: drained},
        ignored=_LATE | groups.CHECK_ANSWERS | groups.AMBIENT,
        illegal=_PAST,
    ),
    Page(
        Draining,
        handled={Drained: drained},
        ignored=_LATE | groups.CHECK_ANSWERS | groups.AMBIENT | groups.HOST,
        illegal=_PAST,
    ),
    Page(Failed, handled={}, ignored=groups.ALL, illegal=frozenset()),
    Page(Gone, handled={}, ignored=groups.ALL, illegal=frozenset()),
)
