"""The states of a joiner, and what each phase needs to know.

A state holds only what its phase needs; what all phases carry along is the journey (``journey.py``).
Nothing here decides anything; how a state is entered is in ``moves.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

import msgspec

from coldstart.effects import Effect
from coldstart.events import Event, OfferReceived, PullEnded
from coldstart.phases.journey import Journey
from coldstart.plan import Chunks, Pace, part_of
from coldstart.portions import Brought
from coldstart.ports import Advert

WIDE = 16
"""Chunks that a model must have at least for further sources outside of crowds: fewer cannot be divided evenly."""

STORAGE = "storage"
"""The origin of chunks that were read from the checkpoint."""


class Phase(StrEnum):
    """What an operator sees; several states may make up one phase."""

    IDLE = "IDLE"
    DISCOVER = "DISCOVER"
    HANDSHAKE = "HANDSHAKE"
    TRANSFER = "TRANSFER"
    FALLBACK = "FALLBACK"
    VERIFY = "VERIFY"
    SERVE = "SERVE"
    FAILED = "FAILED"
    GONE = "GONE"


class Failure(StrEnum):
    """Why a cold start ended in FAILED."""

    STORAGE = "storage"
    CONFLICT = "conflict"
    CHECK = "check"
    MEMORY = "memory"
    GROUP = "group"


class State(msgspec.Struct, frozen=True, tag=True):
    """Base of all states of the joiner."""

    journey: Journey


class Idle(State, frozen=True):
    """Skeleton and memory are not ready yet."""


class Discovering(State, frozen=True):
    """A claim is on its way. Patience has been running since ``since``."""

    since: float


class Spot(msgspec.Struct, frozen=True):
    """A place in line, with ``ahead`` others before it at the moment ``at``."""

    at: float
    ahead: int


class Waiting(State, frozen=True):
    """In line for a source: ``leader`` reads storage, or (empty) all sources are busy.

    Since ``since`` patience runs, or, while a leader is at work, the time for following. ``spot`` is where we stood
    when that was first heard of.
    """

    leader: str
    since: float
    spot: Spot | None = None


class Handshaking(State, frozen=True):
    """A slot is ours; the source's offer and the truth are on their way, in any order.

    ``part`` of the stream is to come from there; -1: everything. ``connected``: nothing is being set up for the offer.
    """

    source: Advert
    since: float
    part: int = -1
    truth: bool = False
    offer: OfferReceived | None = None
    connected: bool = True


class Further(msgspec.Struct, frozen=True):
    """A further source beside the first one: sought, then agreed with, then read (as soon as it has offered).

    ``part`` of the stream is what it is asked for first. ``ending`` says why its pull is being given up.
    """

    attempt: int
    part: int
    source: Advert | None = None
    offered: bool = False
    transport: str = ""
    ticket: bytes = b""
    have: Chunks | None = None
    pulling: Chunks = Chunks()
    ending: str = ""
    brought: Brought | None = None


class Agreeing(State, frozen=True):
    """We had a source and wait for every rank of our group to have one; ours is kept for a short wait only.

    ``over`` once we have said that it takes too long.
    """

    source: Advert | None
    since: float
    offer: OfferReceived | None
    over: bool = False
    part: int = -1


class Transferring(State, frozen=True):
    """Chunks arrive from ``source`` over ``transport``; ``had`` were verified when it began.

    A source that still receives itself has only ``have`` (None: everything). ``pulling`` is on its way; where
    it is empty, we wait for more to pull. In a crowd only one ``part`` is to come from there, as long as any of
    it is missing and there is a ``further`` source, or one is sought; whoever has been asked for all of its own part
    is asked for the other one, too. Outside of crowds there may be several, the last one begun at the end.
    """

    source: Advert
    pace: Pace
    had: int
    transport: str = ""
    ticket: bytes = b""
    have: Chunks | None = None
    pulling: Chunks = Chunks()
    part: int = -1
    further: tuple[Further, ...] = ()
    seen: float = 0.0
    """When something of it came last, or word that it goes on."""
    brought: Brought = Brought(0.0, 0.0)
    alone: float = 0.0
    """Bytes per second that the first source gave alone, where others were sought because of that; 0: nobody was, or
    there is a crowd."""
    sought: float = 0.0
    """When others were sought last because of that; 0: never."""
    wanted: int = 1
    """How many sources there are to be then, as the policy said."""
    since: float = 0.0
    """When the number of sources that give has changed last, and how many bytes had come from all of them by then."""
    mark: int = 0

    @property
    def widenable(self) -> bool:
        """Whether further sources may be sought because the first one is slow: see ``widen.py``."""
        journey = self.journey
        return (
            not (self.further and not self.alone)
            and self.have is None
            and not journey.narrow
            and journey.accord is None
            and journey.partial
            and bool(journey.root)
            and journey.total >= WIDE
            and self.transport in journey.growing
        )

    @property
    def unasked(self) -> Chunks:
        """What is missing here and on its way from nobody."""
        unasked = self.journey.missing - self.pulling
        for each in self.further:
            unasked -= each.pulling
        return unasked

    @property
    def offered(self) -> Chunks:
        """What of it is to be had there."""
        return self._wanted(self.part if self.further else -1, self.have)

    def offered_by(self, other: Further) -> Chunks:
        """The same of a further source."""
        return self._wanted(other.part, other.have)

    def _wanted(self, part: int, have: Chunks | None) -> Chunks:
        unasked = self.unasked
        wanted = unasked & part_of(self.journey.total, part) or unasked if part >= 0 else unasked
        return wanted if have is None else wanted & have

    @property
    def idle(self) -> bool:
        """Whether the source has done what there was to do, while a further one has not."""
        return bool(self.further) and not (self.pulling or self.unasked)

    def with_further(self, other: Further) -> Transferring:
        """The same with ``other`` as it is now, in the place of what it was."""
        further = tuple([other if each.attempt == other.attempt else each for each in self.further])
        return msgspec.structs.replace(self, further=further)

    def without(self, other: Further) -> Transferring:
        """The same with one source less."""
        further = tuple([each for each in self.further if each.attempt != other.attempt])
        return msgspec.structs.replace(self, further=further)


class Abandoning(State, frozen=True):
    """A pull from ``source`` was given up, and with it those from ``further`` ones; ``waits`` are the attempts that
    are not quiet yet, and what they were to bring."""

    source: Advert
    pace: Pace
    had: int
    reason: str
    waits: tuple[tuple[int, Chunks], ...] = ()
    further: tuple[Further, ...] = ()

    def after(self, event: PullEnded) -> Abandoning:
        """What is still waited for when a pull has ended."""
        left = [(each, event.left_of(chunks) if each == event.attempt else chunks) for each, chunks in self.waits]
        return msgspec.structs.replace(self, waits=tuple([(each, chunks) for each, chunks in left if chunks]))


class Replacing(State, frozen=True):
    """The target is being quarantined because an abandoned pull from ``source`` would not become quiet."""

    source: Advert
    since: float


class Loading(State, frozen=True):
    """Missing chunks are read from storage; ``leading`` for the whole fleet or for ourselves.

    ``stated``: chunks whose digests the fleet knows, so that they may be lent before all are here.
    """

    leading: bool
    stated: Chunks = Chunks()


class LoadFailing(State, frozen=True):
    """A storage read was given up and is not quiet yet."""

    failure: Failure
    reason: str


class Publishing(State, frozen=True):
    """All bytes are here before any truth was known: ours is being published.

    ``source`` is the last one, if any, that lent us what it had itself from whoever reads storage.
    """

    source: Advert | None = None


class Checking(State, frozen=True):
    """All chunks are verified; the builder checks the module. ``source`` is the last one, if any."""

    source: Advert | None


class Confirming(State, frozen=True):
    """Everything here is sound; we wait for our group to be. ``over`` once we have said that it takes too long."""

    since: float
    over: bool = False


class Serving(State, frozen=True):
    """The weights are right. The source's machine lends them."""


class Draining(State, frozen=True):
    """Still serving; transfers in flight come to their end."""


class Failed(State, frozen=True):
    """No path led to verified weights."""

    failure: Failure
    reason: str


class Gone(State, frozen=True):
    """Nothing is held, lent or advertised any more."""


PHASE_OF: Mapping[type[State], Phase] = {
    Idle: Phase.IDLE,
    Discovering: Phase.DISCOVER,
    Waiting: Phase.DISCOVER,
    Handshaking: Phase.HANDSHAKE,
    Agreeing: Phase.HANDSHAKE,
    Transferring: Phase.TRANSFER,
    Abandoning: Phase.TRANSFER,
    Replacing: Phase.TRANSFER,
    Loading: Phase.FALLBACK,
    LoadFailing: Phase.FALLBACK,
    Publishing: Phase.VERIFY,
    Checking: Phase.VERIFY,
    Confirming: Phase.VERIFY,
    Serving: Phase.SERVE,
    Draining: Phase.SERVE,
    Failed: Phase.FAILED,
    Gone: Phase.GONE,
}

def further_of(state: State) -> tuple[Further, ...]:
    """The sources beside the first one, in a state that may have some."""
    return state.further if isinstance(state, Transferring | Abandoning) else ()


def further_at(state: State, attempt: int) -> Further | None:
    """The one of them whose attempt that is, if it is one's."""
    return next((each for each in further_of(state) if each.attempt == attempt), None)


Move = tuple[State, tuple[Effect, ...]]
"""What a step returns."""

Handler = Callable[..., Move]
"""``handler(state, event, at) -> Move``; typed on the pages by the concrete state and event."""


class Page(msgspec.Struct, frozen=True):
    """The rules of one state: every event is handled, ignored or illegal; never two of them."""

    state: type[State]
    handled: Mapping[type[Event], Handler]
    ignored: frozenset[type[Event]]
    illegal: frozenset[type[Event]]
