"""The advert: what the store is told that can be had here, and what it answers.

Decides when a worker becomes a source and what of it is lent. Who may read is decided in ``grants.py``.
"""

from __future__ import annotations

from msgspec.structs import replace

from coldstart import events
from coldstart.effects import Arm, Disarm, Effect, Withdraw
from coldstart.events import Timer
from coldstart.modes import moves
from coldstart.modes.states import EVERYTHING, Mode, Move, Source
from coldstart.plan import Chunks


def chunks_shared(source: Source, event: events.ChunksShared, at: float) -> Move:
    """What has arrived and is right can be had at once; a first chunk makes a source.

    Nothing new is a sign that we go on: whoever waits for more is told of that, too, though not as often.
    """
    if source.have is None:
        return source, ()
    pause = source.terms.beat if event.have == source.have else source.terms.tell
    sharing = replace(source, mode=Mode.OPEN, have=event.have, parts=event.parts)
    sharing, effects = moves.tell(sharing, pause, at)
    news = source.mode is Mode.SILENT or source.parts != event.parts
    return sharing, (moves.advert(sharing), *effects) if news else effects


def sharing_ended(source: Source, event: events.SharingEnded, at: float) -> Move:
    """The memory is left, or will be written again, before all of it was here."""
    if source.have is None:
        return source, ()
    withdrawn: tuple[Effect, ...] = ()
    if source.mode is not Mode.SILENT:
        withdrawn = (Withdraw(), Disarm(Timer.RENEW), Disarm(Timer.TELL))
    state, effects = moves.close_all(replace(source, mode=Mode.SILENT, have=Chunks(), doubts=()), "left")
    return state, (*effects, *withdrawn)


def lending_started(source: Source, event: events.LendingStarted, at: float) -> Move:
    """Everything is here and right; but what is withheld stays so."""
    if source.have is None:
        return source, ()
    mode = Mode.WITHHELD if source.mode is Mode.WITHHELD else Mode.OPEN
    lending = replace(source, mode=mode, have=None, parts=())
    return lending, (moves.advert(lending), Disarm(Timer.TELL), *moves.progress(lending), *moves.scrub(lending))


def advertised(source: Source, event: events.Advertised, at: float) -> Move:
    """Who is struck at two renewals in a row has missed the letter that says why: all must be inspected."""
    if source.ended:
        source = replace(source, ended=tuple(name for name in source.ended if name not in event.ended))
    renew = Arm(Timer.RENEW, source.terms.lease / 3)
    if not event.struck or source.doubts or source.mode is not Mode.OPEN:
        return replace(source, suspected=False) if source.suspected else source, (renew,)
    if not source.suspected:
        return replace(source, suspected=True), (renew,)
    doubting = replace(source, suspected=False, doubts=(EVERYTHING,))
    return doubting, (renew, moves.inspect(doubting))


def advert_failed(source: Source, event: events.AdvertFailed, at: float) -> Move:
    """The store may have lost us; when it is back it is told everything."""
    return source, (Arm(Timer.RENEW, source.terms.lease / 3),)


def store_renewed(source: Source, event: events.StoreRenewed, at: float) -> Move:
    return source, (moves.advert(source, afresh=True),)
