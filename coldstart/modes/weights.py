"""Weights that may be wrong: said by the host, doubted by a joiner, or found out by scrubbing.

Decides when nothing is lent any more, and when it is again. What is lent meanwhile is in ``adverts.py``.
"""

from __future__ import annotations

from msgspec.structs import replace

from coldstart import events
from coldstart.effects import Arm, Inspect
from coldstart.events import Timer
from coldstart.modes import moves
from coldstart.modes.states import MAX_DOUBTS, Mode, Move, Source
from coldstart.scrubbing import MISSES


def weights_changed(source: Source, event: events.WeightsChanged, at: float) -> Move:
    """Whoever reads now gets a mixture: nobody may, until the weights are proven again."""
    return moves.withhold(source, "weights changed", "the host changes the weights")


def weights_settled(source: Source, event: events.WeightsSettled, at: float) -> Move:
    """They are lent again if they equal the truth; they may be others now, for good."""
    return source, (Inspect(source.generation),)


def doubt_received(source: Source, event: events.DoubtReceived, at: float) -> Move:
    """The joiner may be wrong, or the way to it: look for ourselves, one chunk at a time.

    Anybody may doubt, also after the grant has ended: an answer costs one digest at a time.
    """
    if event.chunk in source.doubts or len(source.doubts) >= MAX_DOUBTS:
        return source, ()
    if source.have is not None and event.chunk not in source.have:
        return source, ()
    doubting = replace(source, doubts=(*source.doubts, event.chunk))
    return doubting, () if source.doubts else (moves.inspect(doubting),)


def weights_proven(source: Source, event: events.WeightsProven, at: float) -> Move:
    """Say so to those who were warned of us."""
    if event.generation != source.generation:
        return source, ()
    left = replace(source, doubts=source.doubts[1:])
    if left.doubts:
        return left, (moves.inspect(left),)
    proven = replace(source, mode=Mode.OPEN, doubts=(), proof=source.proof + 1, why="")
    return proven, (moves.advert(proven), *(moves.scrub(proven) if source.mode is Mode.WITHHELD else ()))


def weights_damaged(source: Source, event: events.WeightsDamaged, at: float) -> Move:
    """Our own memory is wrong: it is not lent again unless the host settles a change, and it is right then."""
    return moves.find_out(source, event.generation, "weights damaged", event.what or f"chunk {event.chunk}")


def weights_moved(source: Source, event: events.WeightsMoved, at: float) -> Move:
    """What we would lend may be right still, but it is not what the host serves any more."""
    return moves.find_out(source, event.generation, "weights moved", event.what)


def scrubbed(source: Source, event: events.Scrubbed, at: float) -> Move:
    """On to the next chunk, when it is due and this turn has been paid for."""
    if event.generation != source.generation:
        return source, ()
    pace = source.terms.scrub
    rested = replace(source, scrubbing=source.scrubbing.after(pace, event.chunks, at))
    return rested, (Arm(Timer.SCRUB, pace.pause(event.seconds)),)


def scrub_failed(source: Source, event: events.ScrubFailed, at: float) -> Move:
    """A device may be out of memory for a moment; what stays without a digest proves nothing."""
    if event.generation != source.generation:
        return source, ()
    missed = replace(source, scrubbing=source.scrubbing.after_miss())
    if missed.scrubbing.missed >= MISSES:
        return moves.find_out(missed, event.generation, "weights damaged", f"they cannot be digested: {event.reason}")
    return missed, (Arm(Timer.SCRUB, source.terms.scrub.pause(0.0)),)
