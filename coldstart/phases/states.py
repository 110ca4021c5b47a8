"""The states of a joiner, and what each phase needs to know.

A state holds only what its phase needs; what all phases carry along is the :class:`Journey`.
Nothing here decides anything; how a state is entered is in ``moves.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

import msgspec

from coldstart.effects import Effect
from coldstart.estimate import Estimate
from coldstart.events import Event, OfferReceived, PullEnded
from coldstart.group import Accord
from coldstart.plan import Chunks, Limits, Pace, part_of
from coldstart.policies import AtOnce, source_bound
from coldstart.portions import Brought
from coldstart.ports import Advert

WIDE = 16
"""Chunks that a model must have at least for a second source outside of crowds: fewer cannot be divided evenly."""

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


class Journey(msgspec.Struct, frozen=True):
    """What a joiner carries through all phases.

    Args:
        limits: how long and how often.
        total: chunks of the layout.
        partial: storage can be read chunk by chunk.
        chunk_bytes: size of a chunk.
        verified: chunks whose digest was right.
        origins: where each verified chunk came from, by worker or :data:`STORAGE`.
        attempt: number of the current try; grows, never repeats.
        transports: ours, as long as none has failed.
        connecting: those of them that connect before a byte is asked for.
        growing: those of them whose pulls can be asked for more while they are under way.
        abortable: those of them whose pulls can be ended at any time.
        failed: transports that failed before anything landed; not asked for until the source is left.
        tries: sources that were given a chance.
        excluded: workers never asked again.
        patience: seconds that may still be lost on peers and coordination.
        followed: seconds spent waiting for loaders.
        asides: second sources that were sought beside a first one; they number their attempts from -1 down.
        root: name of the published truth, empty while unknown.
        fetched: name of the truth whose record is here.
        detours: why each source or path was left, in order.
        storage_rate: bytes per second that this storage gave before; 0: not known.
        choice: the last estimate of what is quicker, peers or storage, and what was decided.
        asked: the attempt in which the store was asked to admit us to storage, the last time it was.
        accord: what is said and decided in the rank's group; None outside of any.
        link: bytes per second that the link from the last source has given at best; 0: not known.
        narrow: a second source has been tried in vain.
        at_once: the policy by which a second source is sought outside of crowds.
    """

    limits: Limits
    total: int = 0
    partial: bool = True
    chunk_bytes: int = 0
    verified: Chunks = Chunks()
    origins: tuple[tuple[str, Chunks], ...] = ()
    attempt: int = 0
    transports: tuple[str, ...] = ()
    connecting: tuple[str, ...] = ()
    growing: tuple[str, ...] = ()
    abortable: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    tries: int = 0
    excluded: tuple[str, ...] = ()
    patience: float = 0.0
    followed: float = 0.0
    asides: int = 0
    root: str = ""
    fetched: str = ""
    detours: tuple[str, ...] = ()
    storage_rate: float = 0.0
    choice: Estimate | None = None
    asked: int = 0
    accord: Accord | None = None
    link: float = 0.0
    narrow: bool = False
    at_once: AtOnce = source_bound

    @property
    def missing(self) -> Chunks:
        return Chunks.first(self.total) - self.verified

    @property
    def complete(self) -> bool:
        return len(self.verified) == self.total

    def with_chunk(self, chunk: int, origin: str) -> Journey:
        """The journey with one more verified chunk; a repeated chunk changes nothing."""
        if chunk in self.verified:
            return self
        origins = dict(self.origins)
        origins[origin] = origins.get(origin, Chunks()).add(chunk)
        return msgspec.structs.replace(self, verified=self.verified.add(chunk), origins=tuple(origins.items()))

    def keeping(self, chunks: Chunks) -> Journey:
        """The journey with only ``chunks`` of the verified ones."""
        origins = ((origin, Chunks(had.bits & chunks.bits)) for origin, had in self.origins)
        left = tuple((origin, had) for origin, had in origins if had)
        return msgspec.structs.replace(self, verified=Chunks(self.verified.bits & chunks.bits), origins=left)


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


class Second(msgspec.Struct, frozen=True):
    """A second source, of another part of the stream: sought, then agreed with, then read (as soon as it has offered).

    ``ending`` says why its pull is being given up. ``mark`` is how many bytes had come from anybody when it offered.
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
    mark: int = 0


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
    it is missing and there is a ``second`` source, or one is sought; whoever has been asked for all of its own part
    is asked for the other one, too.
    """

    source: Advert
    pace: Pace
    had: int
    transport: str = ""
    ticket: bytes = b""
    have: Chunks | None = None
    pulling: Chunks = Chunks()
    part: int = -1
    second: Second | None = None
    seen: float = 0.0
    """When something of it came last, or word that it goes on."""
    brought: Brought = Brought(0.0, 0.0)
    alone: float = 0.0
    """Bytes per second that came when the second source was sought only because of that; 0: there is a crowd."""
    sought: float = 0.0
    """When that was; 0: never."""

    @property
    def widenable(self) -> bool:
        """Whether a second source may be sought because the first one is slow: see ``widen.py``."""
        journey = self.journey
        return (
            self.second is None
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
        return unasked if self.second is None else unasked - self.second.pulling

    @property
    def offered(self) -> Chunks:
        """What of it is to be had there."""
        return self._wanted(-1 if self.second is None else self.part, self.have)

    def offered_by(self, second: Second) -> Chunks:
        """The same of the second source."""
        return self._wanted(second.part, second.have)

    def _wanted(self, part: int, have: Chunks | None) -> Chunks:
        unasked = self.unasked
        wanted = unasked & part_of(self.journey.total, part) or unasked if part >= 0 else unasked
        return wanted if have is None else wanted & have

    @property
    def idle(self) -> bool:
        """Whether the source has done what there was to do, while the second one has not."""
        return self.second is not None and not (self.pulling or self.unasked)


class Abandoning(State, frozen=True):
    """A pull from ``source`` was given up, and with it that from a ``second`` one; ``waits`` are the attempts that
    are not quiet yet, and what they were to bring."""

    source: Advert
    pace: Pace
    had: int
    reason: str
    waits: tuple[tuple[int, Chunks], ...] = ()
    second: Second | None = None

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
