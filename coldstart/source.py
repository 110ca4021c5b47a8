"""The source's state machine: advertise, grant, watch over grants, drain.

Decides who may read this worker's weights and for how long. Verified chunks are lent while the others
still arrive; joiners are told of each and that we live. Like the joiner's machine it is
pure: ``step(state, event, at) -> (state, effects)``, total over modes and events. A grant lives
only as long as its joiner shows signs of life; a joiner that dies, stalls or lies costs a
source one slot until the grant's time is over, and nothing else. Weights are lent only in the
layout they were verified in, and only as long as they are what they were: a host should say when it changes
them; who does not is found out by scrubbing (``scrubbing.py`` has its pace). A source that withdrew serves on.
``lending.py`` performs what is asked for here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from coldstart import events
from coldstart.effects import (
    Advertise,
    Arm,
    CloseGrant,
    Disarm,
    Effect,
    Inspect,
    OpenOffer,
    ReportDrained,
    Scrub,
    SendOffer,
    SendProgress,
    SendRefusal,
    Withdraw,
)
from coldstart.errors import IllegalTransition
from coldstart.events import Event, Timer
from coldstart.plan import Chunks
from coldstart.scrubbing import MISSES, Pace, Pass

NO_SIGN_OF_LIFE = "no sign of life"
"""Outcome of a grant whose joiner fell silent."""


EVERYTHING = -1
"""A doubt of which nobody has said what chunk it concerns."""

MAX_DOUBTS = 16
"""Chunks that wait to be inspected, at most."""


MAX_ENDED = 64
"""Ended transfers that are remembered until the store has heard of them."""


class Mode(StrEnum):
    """What the source as a whole is doing."""

    SILENT = "silent"
    """No verified weights yet: nothing is advertised."""
    OPEN = "open"
    """Advertised; grants are given."""
    WITHHELD = "withheld"
    """The weights may not equal the truth: the advert says that nothing can be had here."""
    DRAINING = "draining"
    """Withdrawn; grants in flight may end."""
    CLOSED = "closed"
    """Nothing is lent any more."""


class Grantee(msgspec.Struct, frozen=True):
    """One joiner with a grant. ``accepted`` once it has shown that it means this transfer."""

    transfer: str
    joiner: str
    transport: str
    number: int
    """The joiner's random number; answers return it plus one."""
    accepted: bool = False
    closing: bool = False


class Terms(msgspec.Struct, frozen=True):
    """What a source lends, and on what conditions. Times in seconds.

    Args:
        layout: lineage of the weights that are lent.
        slots: grants at one time.
        transports: names.
        lease: life of the advert; renewed three times as often.
        accept: an offer that is not accepted within this is taken back.
        grant: an accepted grant without a sign of life for so long is closed.
        drain: grants in flight may go on for so long.
        tell: while chunks arrive here, joiners are told of them at most so often.
        beat: and of progress that is no chunk yet.
        scrub: how often the weights are digested anew; never unless it is said.
    """

    layout: str
    slots: int
    transports: tuple[str, ...]
    lease: float = 6.0
    accept: float = 5.0
    grant: float = 15.0
    drain: float = 10.0
    tell: float = 0.02
    beat: float = 0.5
    scrub: Pace = Pace()


class Source(msgspec.Struct, frozen=True):
    """State of the source's side."""

    terms: Terms
    mode: Mode = Mode.SILENT
    have: Chunks | None = Chunks()
    """What may be lent; None: everything."""
    parts: tuple[int, ...] = ()
    """The parts of it that have begun to arrive; empty: all."""
    told: float = -1.0
    """When joiners were last told of what is here."""
    generation: int = 1
    """Grows when the weights change: what is read across a change is a mixture."""
    proof: int = 0
    """Grows when doubted weights have been digested anew and were right."""
    doubts: tuple[int, ...] = ()
    """Chunks that joiners found wrong and that are being inspected, the first one now."""
    suspected: bool = False
    """Struck at the last renewal, for no reason that we know."""
    why: str = ""
    """Why the weights are withheld, for whoever runs this worker."""
    scrubbing: Pass = Pass()
    """How far we are in digesting everything anew."""
    grants: tuple[Grantee, ...] = ()
    ended: tuple[str, ...] = ()
    """Transfers that ended since the store heard from us; what their joiners say may be lost."""

    def grantee(self, transfer: str) -> Grantee | None:
        for grant in self.grants:
            if grant.transfer == transfer:
                return grant
        return None

    def with_grant(self, grant: Grantee) -> Source:
        others = [other for other in self.grants if other.transfer != grant.transfer]
        return replace(self, grants=(*others, grant))

    def without(self, transfer: str) -> Source:
        return replace(self, grants=tuple([grant for grant in self.grants if grant.transfer != transfer]))


Move = tuple[Source, tuple[Effect, ...]]


# ------------------------------------------------------------------------------------ advertising


def chunks_shared(source: Source, event: events.ChunksShared, at: float) -> Move:
    """What has arrived and is right can be had at once; a first chunk makes a source.

    Nothing new is a sign that we go on: whoever waits for more is told of that, too, though not as often.
    """
    if source.have is None:
        return source, ()
    pause = source.terms.beat if event.have == source.have else source.terms.tell
    sharing = replace(source, mode=Mode.OPEN, have=event.have, parts=event.parts)
    sharing, effects = _tell(sharing, pause, at)
    news = source.mode is Mode.SILENT or source.parts != event.parts
    return sharing, (_advert(sharing), *effects) if news else effects


def sharing_ended(source: Source, event: events.SharingEnded, at: float) -> Move:
    """The memory is left, or will be written again, before all of it was here."""
    if source.have is None:
        return source, ()
    withdrawn: tuple[Effect, ...] = ()
    if source.mode is not Mode.SILENT:
        withdrawn = (Withdraw(), Disarm(Timer.RENEW), Disarm(Timer.TELL))
    state, effects = _close_all(replace(source, mode=Mode.SILENT, have=Chunks(), doubts=()), "left")
    return state, (*effects, *withdrawn)


def lending_started(source: Source, event: events.LendingStarted, at: float) -> Move:
    """Everything is here and right; but what is withheld stays so."""
    if source.have is None:
        return source, ()
    mode = Mode.WITHHELD if source.mode is Mode.WITHHELD else Mode.OPEN
    lending = replace(source, mode=mode, have=None, parts=())
    return lending, (_advert(lending), Disarm(Timer.TELL), *_progress(lending), *_scrub(lending))


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
    return doubting, (renew, _inspect(doubting))


def advert_failed(source: Source, event: events.AdvertFailed, at: float) -> Move:
    """The store may have lost us; when it is back it is told everything."""
    return source, (Arm(Timer.RENEW, source.terms.lease / 3),)


def store_renewed(source: Source, event: events.StoreRenewed, at: float) -> Move:
    return source, (_advert(source, afresh=True),)


# -------------------------------------------------------------------------- weights that may be wrong


def weights_changed(source: Source, event: events.WeightsChanged, at: float) -> Move:
    """Whoever reads now gets a mixture: nobody may, until the weights are proven again."""
    return _withhold(source, "weights changed", "the host changes the weights")


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
    return doubting, () if source.doubts else (_inspect(doubting),)


def weights_proven(source: Source, event: events.WeightsProven, at: float) -> Move:
    """Say so to those who were warned of us."""
    if event.generation != source.generation:
        return source, ()
    left = replace(source, doubts=source.doubts[1:])
    if left.doubts:
        return left, (_inspect(left),)
    proven = replace(source, mode=Mode.OPEN, doubts=(), proof=source.proof + 1, why="")
    return proven, (_advert(proven), *(_scrub(proven) if source.mode is Mode.WITHHELD else ()))


def weights_damaged(source: Source, event: events.WeightsDamaged, at: float) -> Move:
    """Our own memory is wrong: it is not lent again unless the host settles a change, and it is right then."""
    return _found_out(source, event.generation, "weights damaged", event.what or f"chunk {event.chunk}")


def weights_moved(source: Source, event: events.WeightsMoved, at: float) -> Move:
    """What we would lend may be right still, but it is not what the host serves any more."""
    return _found_out(source, event.generation, "weights moved", event.what)


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
        return _found_out(missed, event.generation, "weights damaged", f"they cannot be digested: {event.reason}")
    return missed, (Arm(Timer.SCRUB, source.terms.scrub.pause(0.0)),)


# ----------------------------------------------------------------------------------------- grants


def hello_received(source: Source, event: events.HelloReceived, at: float) -> Move:
    """Give a grant, or say why not. A repeated hello changes nothing.

    Among the transports that we lend over the joiner's order decides: it knows how fast each was.
    """
    if source.grantee(event.transfer) is not None:
        return source, ()
    transport = next((name for name in event.transports if name in source.terms.transports), "")
    if reason := _objection(source, event, transport):
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
    state, effects = _maybe_drained(source.without(event.transfer))
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
    return _close(source, event.transfer, event.outcome)


def grant_closed(source: Source, event: events.GrantClosed, at: float) -> Move:
    ended = (*source.ended, event.transfer)[-MAX_ENDED:]
    return _maybe_drained(replace(source.without(event.transfer), ended=ended))


def expired(source: Source, event: events.Expired, at: float) -> Move:
    match event.timer:
        case Timer.RENEW if source.mode in (Mode.OPEN, Mode.WITHHELD):
            return source, (_advert(source),)
        case Timer.TELL if source.have is not None:
            return replace(source, told=at), _progress(source)
        case Timer.SCRUB if source.mode is Mode.OPEN and source.have is None:
            return source, (Scrub(source.generation, source.scrubbing.wanted(source.terms.scrub, at)),)
        case Timer.GRANT:
            return _close(source, event.subject, NO_SIGN_OF_LIFE)
        case Timer.DRAIN if source.mode is Mode.DRAINING:
            return _close_all(source, "drained")
        case _:
            return source, ()


# ------------------------------------------------------------------------------------------ drain


def drain_requested(source: Source, event: events.DrainRequested, at: float) -> Move:
    """No new grants from now on; those in flight have until the drain's end."""
    draining = replace(source, mode=Mode.DRAINING)
    state, effects = _maybe_drained(draining)
    ended = (Withdraw(), Disarm(Timer.RENEW), Disarm(Timer.SCRUB))
    return state, (*ended, Arm(Timer.DRAIN, source.terms.drain), *effects)


def report_again(source: Source, event: events.DrainRequested, at: float) -> Move:
    return source, (ReportDrained(),)


# -------------------------------------------------------------------------------------- the table

Handler = Callable[..., Move]
_ANY: Mapping[type[Event], Handler] = {
    events.AcceptReceived: accept_received,
    events.DoneReceived: done_received,
    events.GrantClosed: grant_closed,
    events.OfferOpened: offer_opened,
    events.OfferFailed: offer_failed,
    events.Expired: expired,
}
_ADVERTISED: Mapping[type[Event], Handler] = {
    events.Advertised: advertised,
    events.AdvertFailed: advert_failed,
    events.StoreRenewed: store_renewed,
    events.WeightsChanged: weights_changed,
    events.WeightsProven: weights_proven,
    events.WeightsDamaged: weights_damaged,
    events.WeightsMoved: weights_moved,
    events.DrainRequested: drain_requested,
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
        events.LendingStarted: lending_started,
        events.ChunksShared: chunks_shared,
        events.SharingEnded: sharing_ended,
        events.WeightsChanged: weights_changed,
        events.HelloReceived: refuse,
        events.DrainRequested: drain_requested,
    },
    Mode.OPEN: {
        **_ANY,
        **_ADVERTISED,
        events.LendingStarted: lending_started,
        events.ChunksShared: chunks_shared,
        events.SharingEnded: sharing_ended,
        events.HelloReceived: hello_received,
        events.DoubtReceived: doubt_received,
        events.Scrubbed: scrubbed,
        events.ScrubFailed: scrub_failed,
    },
    Mode.WITHHELD: {
        **_ANY,
        **_ADVERTISED,
        events.HelloReceived: refuse,
        events.WeightsSettled: weights_settled,
        events.LendingStarted: lending_started,
        events.SharingEnded: sharing_ended,
    },
    Mode.DRAINING: {**_ANY, events.HelloReceived: refuse},
    Mode.CLOSED: {events.HelloReceived: refuse, events.DrainRequested: report_again},
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


# ---------------------------------------------------------------------------------------- helpers


def _held(source: Source) -> tuple[str, ...]:
    """The transfers whose slots are in use."""
    return tuple([grant.transfer for grant in source.grants if not grant.closing])


def _advert(source: Source, *, afresh: bool = False) -> Advertise:
    """Everything that the store should know of us now."""
    return Advertise(
        source.generation,
        source.proof,
        source.have,
        source.parts,
        afresh=afresh,
        lends=source.mode is Mode.OPEN,
        held=_held(source),
        ended=source.ended,
    )


def _inspect(source: Source) -> Inspect:
    """Look at the first of the doubts."""
    chunk = source.doubts[0]
    return Inspect(source.generation, source.have if chunk == EVERYTHING else Chunks.of((chunk,)))


def _tell(source: Source, pause: float, at: float) -> Move:
    """Tell joiners what is here by now, at once or, where they were told within ``pause``, after it."""
    if not source.grants:
        return source, ()
    wait = source.told + pause - at
    if wait <= 0:
        return replace(source, told=at), (*_progress(source), Disarm(Timer.TELL))
    return source, (Arm(Timer.TELL, wait),) if pause == source.terms.tell else ()


def _progress(source: Source) -> tuple[SendProgress, ...]:
    """What each joiner with a grant is told."""
    return tuple(
        [
            SendProgress(grant.transfer, grant.joiner, grant.number, source.have)
            for grant in source.grants
            if not grant.closing
        ]
    )


def _scrub(source: Source) -> tuple[Arm, ...]:
    """Begin to look at weights that are lent as a whole."""
    wanted = source.mode is Mode.OPEN and source.have is None and source.terms.scrub.seconds > 0
    return (Arm(Timer.SCRUB, source.terms.scrub.pause(0.0)),) if wanted else ()


def _found_out(source: Source, generation: int, reason: str, what: str) -> Move:
    """The weights are others than the host has said; while they are withheld that is only noted."""
    if generation != source.generation:
        return source, ()
    why = f"{reason}: {what}"
    return (replace(source, why=why), ()) if source.mode is Mode.WITHHELD else _withhold(source, reason, why)


def _withhold(source: Source, reason: str, why: str) -> Move:
    """Nothing is lent; those who read are told, and those who have just read will see the new generation."""
    withheld = replace(source, mode=Mode.WITHHELD, generation=source.generation + 1, doubts=(), why=why)
    state, effects = _close_all(withheld, reason)
    return state, (_advert(state), Disarm(Timer.SCRUB), *effects)


def _objection(source: Source, event: events.HelloReceived, transport: str) -> str:
    """Why this joiner gets no grant, or an empty string."""
    if event.layout != source.terms.layout:
        return "layout"
    if not transport:
        return "no common transport"
    if len(_held(source)) >= source.terms.slots:
        return "busy"
    return ""


def _close(source: Source, transfer: str, outcome: str) -> Move:
    grant = source.grantee(transfer)
    if grant is None or grant.closing:
        return source, ()
    return source.with_grant(replace(grant, closing=True)), (
        CloseGrant(transfer, grant.transport, outcome),
        Disarm(Timer.GRANT, transfer),
    )


def _close_all(source: Source, outcome: str) -> Move:
    effects: list[Effect] = []
    for grant in source.grants:
        if not grant.closing:
            source, closing = _close(source, grant.transfer, outcome)
            effects.append(SendRefusal(grant.transfer, grant.joiner, grant.number, outcome))
            effects.extend(closing)
    return source, tuple(effects)


def _maybe_drained(source: Source) -> Move:
    if source.mode is Mode.DRAINING and not source.grants:
        return replace(source, mode=Mode.CLOSED), (Disarm(Timer.DRAIN), ReportDrained())
    return source, ()
