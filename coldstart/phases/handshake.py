"""HANDSHAKE: agree with the source, connect to it, and know the truth before the first byte.

Decides when a source counts as agreed (its offer is here, so are the digests to verify against, and the
transport is connected) and when it, or only its transport, is left for the next one. Layouts are equal
already: a claim grants only sources of the joiner's own layout. The bytes move in ``transfer.py``.
"""

from __future__ import annotations

from msgspec.structs import replace

from coldstart.effects import Arm, Connect
from coldstart.events import (
    Connected,
    ConnectFailed,
    DrainRequested,
    Expired,
    OfferReceived,
    OfferRefused,
    SourceProgressed,
    Timer,
    TruthMissed,
    TruthReceived,
)
from coldstart.phases import agree, groups, moves
from coldstart.phases.states import Handshaking, Move, Page


def truth_received(state: Handshaking, event: TruthReceived, at: float) -> Move:
    journey = replace(state.journey, fetched=state.journey.root)
    return _agreed(replace(state, journey=journey, truth=True), at)


def offer_received(state: Handshaking, event: OfferReceived, at: float) -> Move:
    """The first one counts; set-up begins at once, beside whatever else is waited for."""
    if state.offer is not None:
        return state, ()
    journey = state.journey
    if event.transport not in journey.connecting:
        return _agreed(replace(state, offer=event), at)
    return replace(state, offer=event, connected=False), (
        Connect(journey.attempt, state.source, event.transport, event.ticket),
        Arm(Timer.ANSWER, journey.limits.connect),
    )


def connected(state: Handshaking, event: Connected, at: float) -> Move:
    return _agreed(replace(state, connected=True), at)


def connect_failed(state: Handshaking, event: ConnectFailed, at: float) -> Move:
    return _unconnected(state, event.reason, at)


def source_progressed(state: Handshaking, event: SourceProgressed, at: float) -> Move:
    """It has more than when it made its offer."""
    if state.offer is None or state.offer.have is None:
        return state, ()
    return replace(state, offer=replace(state.offer, have=event.have)), ()


def truth_missed(state: Handshaking, event: TruthMissed, at: float) -> Move:
    """Bytes that cannot be verified are not worth having."""
    state = replace(state, journey=replace(state.journey, root=""))
    return _next(state, event.reason, at)


def offer_refused(state: Handshaking, event: OfferRefused, at: float) -> Move:
    return _next(state, f"refused ({event.reason})", at)


def expired(state: Handshaking, event: Expired, at: float) -> Move:
    """The source keeps silent, or all patience is spent."""
    match event.timer:
        case Timer.ANSWER if not state.connected:
            return _unconnected(state, "no connection", at)
        case Timer.ANSWER:
            return _next(state, "no answer", at)
        case Timer.PATIENCE:
            journey = replace(moves.spent(state.journey, state.since, at), patience=0.0)
            return moves.leave_source(journey, state.source, "no answer", at)
        case _:
            return state, ()


def drain_requested(state: Handshaking, event: DrainRequested, at: float) -> Move:
    return moves.leave(state.journey, state.source)


def _agreed(state: Handshaking, at: float) -> Move:
    if state.truth and state.connected and state.offer is not None:
        return agree.before_pull(state, at)
    return state, ()


def _unconnected(state: Handshaking, reason: str, at: float) -> Move:
    """Its transport is to blame, and the source may have others."""
    assert state.offer is not None
    journey = moves.spent(state.journey, state.since, at)
    return moves.leave_transport(journey, state.source, state.offer.transport, reason, at)


def _next(state: Handshaking, reason: str, at: float) -> Move:
    journey = moves.spent(state.journey, state.since, at)
    return moves.leave_source(journey, state.source, reason, at)


PAGES = (
    Page(
        Handshaking,
        handled={
            TruthReceived: truth_received,
            TruthMissed: truth_missed,
            OfferReceived: offer_received,
            OfferRefused: offer_refused,
            Connected: connected,
            ConnectFailed: connect_failed,
            SourceProgressed: source_progressed,
            Expired: expired,
            DrainRequested: drain_requested,
        },
        ignored=groups.CLAIM_ANSWERS,
        illegal=groups.START
        | groups.PULL_REPORTS
        | groups.STATE_ANSWERS
        | groups.MEMORY_ANSWERS
        | groups.PUBLISH_ANSWERS
        | groups.CHECK_ANSWERS
        | groups.DRAINED,
    ),
)
