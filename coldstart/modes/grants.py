"""Grants: who may read, for how long, and how that ends; the drain is the end of all of them.

Decides it from hellos, signs of life and clocks. Bytes are not its business.
"""

from __future__ import annotations

from msgspec.structs import replace

from coldstart import events
from coldstart.effects import Arm, Disarm, OpenOffer, ReportDrained, Scrub, SendOffer, SendRefusal, Withdraw
from coldstart.events import Timer
from coldstart.modes import moves
from coldstart.modes.states import MAX_ENDED, NO_SIGN_OF_LIFE, Grantee, Mode, Move, Source


def hello_received(source: Source, event: events.HelloReceived, at: float) -> Move:
    """Give a grant, or say why not. A repeated hello changes nothing.

    Among the transports that we lend over the joiner's order decides: it knows how fast each was.
    """
    if source.grantee(event.transfer) is not None:
        return source, ()
    transport = next((name for name in event.transports if name in source.terms.transports), "")
    if reason := moves.objection(source, event, transport):
        return source, (SendRefusal(event.transfer, event.joiner, event.number, reason),)
    grant = Grantee(event.transfer, event.joiner, transport, event.number)
    beat = () if source.have is None else (Arm(Timer.TELL, source.terms.tell),)
    return source.with_grant(grant), (
        OpenOffer(event.transfer, event.joiner, event.fence, transport, event.trace, source.generation),
        Arm(Timer.GRANT, source.terms.accept, event.transfer),
        *beat,
    )


def refuse(source: Source, event: events.HelloReceived, at: float) -> Move:
    """Silent, draining or closed: no new grants."""
    return source, (SendRefusal(event.transfer, event.joiner, event.number, source.mode.value),)


def offer_opened(source: Source, event: events.OfferOpened, at: float) -> Move:
    grant = source.grantee(event.transfer)
    if grant is None or grant.closing:
        return source, ()
    offer = SendOffer(
        event.transfer, grant.joiner, grant.transport, event.ticket, grant.number, source.generation, source.have
    )
    return source, (offer,)


def offer_failed(source: Source, event: events.OfferFailed, at: float) -> Move:
    grant = source.grantee(event.transfer)
    if grant is None:
        return source, ()
    state, effects = moves.maybe_drained(source.without(event.transfer))
    return state, (
        SendRefusal(event.transfer, grant.joiner, grant.number, event.reason),
        Disarm(Timer.GRANT, event.transfer),
        *effects,
    )


def accept_received(source: Source, event: events.AcceptReceived, at: float) -> Move:
    """The joiner lives: its grant's clock starts anew."""
    grant = source.grantee(event.transfer)
    if grant is None or grant.closing:
        return source, ()
    state = source.with_grant(replace(grant, accepted=True))
    return state, (Arm(Timer.GRANT, source.terms.grant, event.transfer),)


def done_received(source: Source, event: events.DoneReceived, at: float) -> Move:
    return moves.close(source, event.transfer, event.outcome)


def grant_closed(source: Source, event: events.GrantClosed, at: float) -> Move:
    ended = (*source.ended, event.transfer)[-MAX_ENDED:]
    return moves.maybe_drained(replace(source.without(event.transfer), ended=ended))


def expired(source: Source, event: events.Expired, at: float) -> Move:
    match event.timer:
        case Timer.RENEW if source.mode in (Mode.OPEN, Mode.WITHHELD):
            return source, (moves.advert(source),)
        case Timer.TELL if source.have is not None:
            return replace(source, told=at), moves.progress(source)
        case Timer.SCRUB if source.mode is Mode.OPEN and source.have is None:
            return source, (Scrub(source.generation, source.scrubbing.wanted(source.terms.scrub, at)),)
        case Timer.GRANT:
            return moves.close(source, event.subject, NO_SIGN_OF_LIFE)
        case Timer.DRAIN if source.mode is Mode.DRAINING:
            return moves.close_all(source, "drained")
        case _:
            return source, ()


def drain_requested(source: Source, event: events.DrainRequested, at: float) -> Move:
    """No new grants from now on; those in flight have until the drain's end."""
    draining = replace(source, mode=Mode.DRAINING)
    state, effects = moves.maybe_drained(draining)
    ended = (Withdraw(), Disarm(Timer.RENEW), Disarm(Timer.SCRUB))
    return state, (*ended, Arm(Timer.DRAIN, source.terms.drain), *effects)


def report_again(source: Source, event: events.DrainRequested, at: float) -> Move:
    return source, (ReportDrained(),)
