"""The source's state machine: advertise, grant, watch over grants, drain.

Decides who may read this worker's weights and for how long. Verified chunks are lent while the others
still arrive; joiners are told of each and that we live. Like the joiner's machine it is
pure: ``step(state, event, at) -> (state, effects)``, total over modes and events. A grant lives
only as long as its joiner shows signs of life; a joiner that dies, stalls or lies costs a
source one slot until the grant's time is over, and nothing else. Weights are lent only in the
layout they were verified in, and only as long as they are what they were: a host should say when it changes
them; who does not is found out by scrubbing (``scrubbing.py`` has its pace). A source that withdrew serves on.
Its pages are in ``modes/``; ``lending.py`` performs what is asked for here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coldstart import events
from coldstart.errors import IllegalTransition
from coldstart.events import Event
from coldstart.modes import adverts, grants, weights
from coldstart.modes.states import MAX_DOUBTS as MAX_DOUBTS
from coldstart.modes.states import NO_SIGN_OF_LIFE as NO_SIGN_OF_LIFE
from coldstart.modes.states import Grantee as Grantee
from coldstart.modes.states import Mode as Mode
from coldstart.modes.states import Move
from coldstart.modes.states import Source as Source
from coldstart.modes.states import Terms as Terms

Handler = Callable[..., Move]
_ANY: Mapping[type[Event], Handler] = {
    events.AcceptReceived: grants.accept_received,
    events.DoneReceived: grants.done_received,
    events.GrantClosed: grants.grant_closed,
    events.OfferOpened: grants.offer_opened,
    events.OfferFailed: grants.offer_failed,
    events.Expired: grants.expired,
}
_ADVERTISED: Mapping[type[Event], Handler] = {
    events.Advertised: adverts.advertised,
    events.AdvertFailed: adverts.advert_failed,
    events.StoreRenewed: adverts.store_renewed,
    events.WeightsChanged: weights.weights_changed,
    events.WeightsProven: weights.weights_proven,
    events.WeightsDamaged: weights.weights_damaged,
    events.WeightsMoved: weights.weights_moved,
    events.DrainRequested: grants.drain_requested,
}
_SCRUBBED: frozenset[type[Event]] = frozenset({events.Scrubbed, events.ScrubFailed})
_INSPECTED: frozenset[type[Event]] = _SCRUBBED | {
    events.DoubtReceived,
    events.WeightsChanged,
    events.WeightsSettled,
    events.WeightsProven,
    events.WeightsDamaged,
    events.WeightsMoved,
}
_ADVERT: frozenset[type[Event]] = frozenset({events.Advertised, events.AdvertFailed, events.StoreRenewed})

_SHARED: frozenset[type[Event]] = frozenset({events.ChunksShared, events.SharingEnded})

HANDLED: Mapping[Mode, Mapping[type[Event], Handler]] = {
    Mode.SILENT: {
        **_ANY,
        events.LendingStarted: adverts.lending_started,
        events.ChunksShared: adverts.chunks_shared,
        events.SharingEnded: adverts.sharing_ended,
        events.WeightsChanged: weights.weights_changed,
        events.HelloReceived: grants.refuse,
        events.DrainRequested: grants.drain_requested,
    },
    Mode.OPEN: {
        **_ANY,
        **_ADVERTISED,
        events.LendingStarted: adverts.lending_started,
        events.ChunksShared: adverts.chunks_shared,
        events.SharingEnded: adverts.sharing_ended,
        events.HelloReceived: grants.hello_received,
        events.DoubtReceived: weights.doubt_received,
        events.Scrubbed: weights.scrubbed,
        events.ScrubFailed: weights.scrub_failed,
    },
    Mode.WITHHELD: {
        **_ANY,
        **_ADVERTISED,
        events.HelloReceived: grants.refuse,
        events.WeightsSettled: weights.weights_settled,
        events.LendingStarted: adverts.lending_started,
        events.SharingEnded: adverts.sharing_ended,
    },
    Mode.DRAINING: {**_ANY, events.HelloReceived: grants.refuse},
    Mode.CLOSED: {events.HelloReceived: grants.refuse, events.DrainRequested: grants.report_again},
}
IGNORED: Mapping[Mode, frozenset[type[Event]]] = {
    Mode.SILENT: _ADVERT | (_INSPECTED - {events.WeightsChanged}),
    Mode.OPEN: frozenset({events.WeightsSettled}),
    Mode.WITHHELD: _SCRUBBED | {events.ChunksShared, events.DoubtReceived},
    Mode.DRAINING: _ADVERT | _INSPECTED | _SHARED | {events.DrainRequested},
    Mode.CLOSED: _ADVERT | _INSPECTED | _SHARED | frozenset(_ANY),
}
ILLEGAL: Mapping[Mode, frozenset[type[Event]]] = {
    Mode.SILENT: frozenset(),
    Mode.OPEN: frozenset(),
    Mode.WITHHELD: frozenset(),
    Mode.DRAINING: frozenset({events.LendingStarted}),
    Mode.CLOSED: frozenset({events.LendingStarted}),
}


def step(source: Source, event: Event, at: float) -> Move:
    """The next state and what it asks for.

    Args:
        at: monotonic seconds at which the event happened; never decreasing.

    Raises:
        IllegalTransition: the event can never come in this mode; a bug, not a peer's fault.
    """
    kind = type(event)
    handler = HANDLED[source.mode].get(kind)
    if handler is not None:
        return handler(source, event, at)
    if kind in IGNORED[source.mode]:
        return source, ()
    raise IllegalTransition(f"{kind.__name__} while {source.mode}", advice="please report this bug")
