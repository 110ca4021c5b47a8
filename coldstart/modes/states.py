"""What a source is at any moment, and the terms on which it lends. Pure values."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from coldstart.effects import Effect
from coldstart.plan import Chunks
from coldstart.scrubbing import Pace, Pass

NO_SIGN_OF_LIFE = "no sign of life"
"""Outcome of a grant whose joiner fell silent."""


EVERYTHING = -1
"""A doubt of which nobody has said what chunk it concerns."""

MAX_DOUBTS = 16
"""Chunks that wait to be inspected, at most."""


MAX_PER_JOINER = 2
"""Grants of one joiner at one time: the one that it uses, and one that it has left and could not say so."""

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
