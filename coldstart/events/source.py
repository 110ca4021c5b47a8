"""What can happen to a source: joiners come and go, the store answers, the host changes its weights."""

from __future__ import annotations

from coldstart.events.common import Event
from coldstart.plan import Chunks


class ChunksShared(Event, frozen=True):
    """``have`` is verified and may be lent while the other chunks still arrive, of these ``parts`` (empty: of all)."""

    have: Chunks
    parts: tuple[int, ...] = ()


class SharingEnded(Event, frozen=True):
    """What was shared may be lent no more: the memory is left, or will be written again."""


class LendingStarted(Event, frozen=True):
    """The weights are verified and may be lent."""


class Advertised(Event, frozen=True):
    """The advert stands until its lease ends; ``struck`` if nobody is sent here for all that.

    The store has heard that the transfers in ``ended`` are over.
    """

    struck: bool = False
    ended: tuple[str, ...] = ()


class AdvertFailed(Event, frozen=True):
    """Coordination is down; the advert may be gone. Or there is a ``conflict``: the store holds another truth."""

    reason: str
    conflict: bool = False


class StoreRenewed(Event, frozen=True):
    """The store lost its memory: nothing we told it is known there any more."""


class HelloReceived(Event, frozen=True):
    """A joiner claimed a slot here and asks for an offer."""

    transfer: str
    joiner: str
    fence: int
    number: int
    layout: str
    transports: tuple[str, ...]
    trace: str = ""


class OfferOpened(Event, frozen=True):
    """The transport opened our memory to one grant."""

    transfer: str
    ticket: bytes


class OfferFailed(Event, frozen=True):
    """The transport cannot open our memory."""

    transfer: str
    reason: str


class AcceptReceived(Event, frozen=True):
    """The joiner proved that it is alive and means this transfer; repeated as a sign of life."""

    transfer: str


class DoneReceived(Event, frozen=True):
    """The joiner needs the grant no more. By its own word it has ``taken`` so many bytes."""

    transfer: str
    outcome: str
    taken: int = 0


class GrantClosed(Event, frozen=True):
    """A revoked grant is quiet: nobody reads our memory for it."""

    transfer: str


class DoubtReceived(Event, frozen=True):
    """A joiner computed a wrong digest for a chunk that it read here."""

    transfer: str
    chunk: int


class WeightsChanged(Event, frozen=True):
    """The host is about to change the weights in place."""


class WeightsSettled(Event, frozen=True):
    """The host has done with changing; whether they are what they were is to be seen."""


class WeightsProven(Event, frozen=True):
    """What was to be inspected equals the truth, as of ``generation``."""

    generation: int


class WeightsDamaged(Event, frozen=True):
    """``chunk`` of our memory does not equal the truth, as of ``generation``; ``what`` lies there, in words."""

    generation: int
    chunk: int
    what: str = ""


class WeightsMoved(Event, frozen=True):
    """The host's weights are not where they were verified, as of ``generation``; ``what`` has become of which."""

    generation: int
    what: str


class Scrubbed(Event, frozen=True):
    """A turn of scrubbing, in which ``chunks`` were due, found nothing wrong, as of ``generation``.

    It took ``seconds`` of a core.
    """

    generation: int
    chunks: Chunks
    seconds: float


class ScrubFailed(Event, frozen=True):
    """A turn of scrubbing could not look, or not digest: nothing is known."""

    generation: int
    reason: str
