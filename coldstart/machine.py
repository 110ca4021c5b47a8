"""The joiner's state machine: the phases' pages joined into one total table.

``step(state, event, at)`` is the whole machine: pure, no clock, no I/O. It decides three things
that hold in every state: events of older attempts are stale, a verdict of our group concerns us
wherever we are, and an event that a page calls illegal is a bug of ours. What each event means is
on the pages in ``phases/``; the other side of a transfer is ``source.py``; ``runner.py`` drives both.
"""

from __future__ import annotations

from collections.abc import Mapping

from coldstart.effects import Effect, LeaveStorage, Release, Resign
from coldstart.errors import IllegalTransition
from coldstart.events import AttemptEvent, Event, GroupEvent, LoaderElected, SourceClaimed, StorageOpened
from coldstart.group import Accord, Group
from coldstart.phases import agree, discover, fallback, handshake, serve, transfer, verify
from coldstart.phases.journey import Journey
from coldstart.phases.states import (
    PHASE_OF,
    Failed,
    Gone,
    Idle,
    Move,
    Page,
    Phase,
    State,
    Transferring,
    further_at,
)
from coldstart.plan import Limits
from coldstart.policies import AtOnce, source_bound

PAGES: Mapping[type[State], Page] = {
    page.state: page
    for page in (
        *discover.PAGES,
        *handshake.PAGES,
        *agree.PAGES,
        *transfer.PAGES,
        *fallback.PAGES,
        *verify.PAGES,
        *serve.PAGES,
    )
}


def initial(limits: Limits, group: Group | None = None, at_once: AtOnce = source_bound) -> State:
    """A joiner before it starts; a group of one is none."""
    accord = Accord(group) if group is not None and group.size > 1 else None
    return Idle(Journey(limits, accord=accord, at_once=at_once))


def step(state: State, event: Event, at: float) -> Move:
    """The next state and what it asks for.

    Args:
        at: monotonic seconds at which the event happened; never decreasing.

    Raises:
        IllegalTransition: the event can never come in this state; a bug, not a peer's fault.
    """
    if isinstance(event, AttemptEvent) and event.attempt < state.journey.attempt:
        other = further_at(state, event.attempt)
        if other is None:
            return state, _stale(event)
        if isinstance(state, Transferring):
            return transfer.further_moved(state, other, event, at)
    if isinstance(event, GroupEvent) and not isinstance(state, Idle):
        return agree.told(state, event, at)
    page = PAGES[type(state)]
    kind = type(event)
    handler = page.handled.get(kind)
    if handler is not None:
        return handler(state, event, at)
    if kind in page.ignored:
        return state, _stale(event) if isinstance(state, Failed | Gone) or isinstance(event, StorageOpened) else ()
    raise IllegalTransition(f"{kind.__name__} in state {type(state).__name__}", advice="please report this bug")


def phase_of(state: State) -> Phase:
    """The phase an operator sees."""
    return PHASE_OF[type(state)]


def ended(state: State) -> bool:
    """Whether nothing can happen any more."""
    return isinstance(state, Failed | Gone)


def _stale(event: Event) -> tuple[Effect, ...]:
    """A slot, a lease or a place at storage that came to an attempt that nobody waits for is given back."""
    match event:
        case SourceClaimed(attempt=attempt, source=source):
            return (Release(attempt, source.worker, "too late"),)
        case LoaderElected():
            return (Resign(),)
        case StorageOpened():
            return (LeaveStorage(),)
        case _:
            return ()


EDGES = (
    (Phase.IDLE, Phase.DISCOVER),
    (Phase.IDLE, Phase.FALLBACK),
    (Phase.DISCOVER, Phase.HANDSHAKE),
    (Phase.DISCOVER, Phase.FALLBACK),
    (Phase.DISCOVER, Phase.FAILED),
    (Phase.HANDSHAKE, Phase.TRANSFER),
    (Phase.HANDSHAKE, Phase.DISCOVER),
    (Phase.HANDSHAKE, Phase.FALLBACK),
    (Phase.HANDSHAKE, Phase.FAILED),
    (Phase.TRANSFER, Phase.VERIFY),
    (Phase.TRANSFER, Phase.DISCOVER),
    (Phase.TRANSFER, Phase.FALLBACK),
    (Phase.TRANSFER, Phase.FAILED),
    (Phase.FALLBACK, Phase.VERIFY),
    (Phase.FALLBACK, Phase.FAILED),
    (Phase.VERIFY, Phase.SERVE),
    (Phase.VERIFY, Phase.FAILED),
    (Phase.SERVE, Phase.GONE),
)
"""Every change of phase that some event can cause; the README's picture is drawn from it."""
