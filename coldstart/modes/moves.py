"""What several of the source's pages do: advertise, tell, withhold, close.

The one place where grants and adverts are ended, so that a slot is given back once. Which event leads here is on the
pages: ``adverts.py``, ``weights.py``, ``grants.py``.
"""

from __future__ import annotations

from msgspec.structs import replace

from coldstart import events
from coldstart.effects import (
    Advertise,
    Arm,
    CloseGrant,
    Disarm,
    Effect,
    Inspect,
    ReportDrained,
    SendProgress,
    SendRefusal,
)
from coldstart.events import Timer
from coldstart.modes.states import EVERYTHING, MAX_PER_JOINER, Mode, Move, Source
from coldstart.plan import Chunks


def held(source: Source) -> tuple[str, ...]:
    """The transfers whose slots are in use."""
    return tuple([grant.transfer for grant in source.grants if not grant.closing])


def advert(source: Source, *, afresh: bool = False) -> Advertise:
    """Everything that the store should know of us now."""
    return Advertise(
        source.generation,
        source.proof,
        source.have,
        source.parts,
        afresh=afresh,
        lends=source.mode is Mode.OPEN,
        held=held(source),
        ended=source.ended,
    )


def inspect(source: Source) -> Inspect:
    """Look at the first of the doubts."""
    chunk = source.doubts[0]
    return Inspect(source.generation, source.have if chunk == EVERYTHING else Chunks.of((chunk,)))


def tell(source: Source, pause: float, at: float) -> Move:
    """Tell joiners what is here by now, at once or, where they were told within ``pause``, after it."""
    if not source.grants:
        return source, ()
    wait = source.told + pause - at
    if wait <= 0:
        return replace(source, told=at), (*progress(source), Disarm(Timer.TELL))
    return source, (Arm(Timer.TELL, wait),) if pause == source.terms.tell else ()


def progress(source: Source) -> tuple[SendProgress, ...]:
    """What each joiner with a grant is told."""
    return tuple(
        [
            SendProgress(grant.transfer, grant.joiner, grant.number, source.have)
            for grant in source.grants
            if not grant.closing
        ]
    )


def scrub(source: Source) -> tuple[Arm, ...]:
    """Begin to look at weights that are lent as a whole."""
    wanted = source.mode is Mode.OPEN and source.have is None and source.terms.scrub.seconds > 0
    return (Arm(Timer.SCRUB, source.terms.scrub.pause(0.0)),) if wanted else ()


def find_out(source: Source, generation: int, reason: str, what: str) -> Move:
    """The weights are others than the host has said; while they are withheld that is only noted."""
    if generation != source.generation:
        return source, ()
    why = f"{reason}: {what}"
    return (replace(source, why=why), ()) if source.mode is Mode.WITHHELD else withhold(source, reason, why)


def withhold(source: Source, reason: str, why: str) -> Move:
    """Nothing is lent; those who read are told, and those who have just read will see the new generation."""
    withheld = replace(source, mode=Mode.WITHHELD, generation=source.generation + 1, doubts=(), why=why)
    state, effects = close_all(withheld, reason)
    return state, (advert(state), Disarm(Timer.SCRUB), *effects)


def objection(source: Source, event: events.HelloReceived, transport: str) -> str:
    """Why this joiner gets no grant, or an empty string."""
    if event.layout != source.terms.layout:
        return "layout"
    if not transport:
        return "no common transport"
    if len(held(source)) >= source.terms.slots:
        return "busy"
    if sum(grant.joiner == event.joiner and not grant.closing for grant in source.grants) >= MAX_PER_JOINER:
        return "grants enough"
    return ""


def close(source: Source, transfer: str, outcome: str) -> Move:
    grant = source.grantee(transfer)
    if grant is None or grant.closing:
        return source, ()
    return source.with_grant(replace(grant, closing=True)), (
        CloseGrant(transfer, grant.transport, outcome),
        Disarm(Timer.GRANT, transfer),
    )


def close_all(source: Source, outcome: str) -> Move:
    effects: list[Effect] = []
    for grant in source.grants:
        if not grant.closing:
            source, closing = close(source, grant.transfer, outcome)
            effects.append(SendRefusal(grant.transfer, grant.joiner, grant.number, outcome))
            effects.extend(closing)
    return source, tuple(effects)


def maybe_drained(source: Source) -> Move:
    if source.mode is Mode.DRAINING and not source.grants:
        return replace(source, mode=Mode.CLOSED), (Disarm(Timer.DRAIN), ReportDrained())
    return source, ()
