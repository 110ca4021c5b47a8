"""What workers send each other through the bus: versioned, bounded, typed; and its meaning as events.

The wire schema is a promise to workers of other versions; events are not. This module is the
one place where the two meet. A message is msgpack, at most 64 KiB, tagged by its type, checked
before anything looks at it. Unknown tags come from newer workers: they are counted and dropped,
never a crash. Nothing from a peer is a path, a key or code.

Liveness is proved both ways, as in a three-way handshake: the joiner's :class:`Hello` carries a
random number, the source's :class:`Offer` returns it plus one with a number of its own, the
joiner's :class:`Accept` returns that plus one.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from coldstart.errors import BadMessage
from coldstart.identity import UNREADABLE, Id

VERSION = 1
MAX_BYTES = 64 * 1024
MAX_TICKET_BYTES = 16 * 1024
MAX_BITS_BYTES = 8 * 1024
"""One bit per chunk: of 65,536 chunks."""

Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9-]{1,32}\Z")]
Hex = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{0,64}\Z")]
Host = Annotated[str, msgspec.Meta(max_length=256)]
Favour = Annotated[tuple[Name, ...], msgspec.Meta(max_length=16)]
Words = Annotated[str, msgspec.Meta(max_length=512)]
Sender = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.:-]{0,96}\Z")]
Bits = Annotated[bytes, msgspec.Meta(max_length=MAX_BITS_BYTES)]
Ticket = Annotated[bytes, msgspec.Meta(max_length=MAX_TICKET_BYTES)]


class Message(msgspec.Struct, frozen=True, tag_field="type", kw_only=True):
    """Base of all messages; ``transfer`` names the claim that they belong to."""

    transfer: Id
    version: int = VERSION


class Hello(Message, frozen=True, tag="hello"):
    """Joiner to source, delivered by the claim: here I am, this is what I want, open your memory."""

    joiner: Id
    number: Number
    layout: Hex
    transports: Annotated[tuple[Name, ...], msgspec.Meta(max_length=16)]
    trace: Annotated[str, msgspec.Meta(max_length=256)] = ""
    favours: Annotated[dict[Host, Favour], msgspec.Meta(max_length=32)] = {}
    """Where the joiner wants another order of transports, by the host that the source's advert names."""


class Reply(Message, frozen=True, kw_only=True):
    """Base of what a worker answers: to a joiner, to an operator, or to another one of its name.

    ``answer`` is the asker's number plus one. ``source`` is the inbox of who says it: a store that fell back
    to an earlier state may have sent the same hello to two sources. Empty from versions that did not say.
    """

    answer: Number
    source: Sender = ""


class Offer(Reply, frozen=True, tag="offer"):
    """Source to joiner: my memory is open to you."""

    number: Number
    transport: Name
    ticket: Ticket
    generation: Number
    have: Bits | None = None
    """The chunks that can be had so far, one bit each, the lowest first; None: all of them."""


class Progress(Reply, frozen=True, tag="progress"):
    """Source to joiner: I live, and this can be had here by now."""

    have: Bits | None = None


class Refusal(Reply, frozen=True, tag="refusal"):
    """Source to joiner: no, or no more."""

    reason: Words


class Accept(Message, frozen=True, tag="accept"):
    """Joiner to source: I am alive and mean this transfer; ``answer`` is your number plus one.

    Repeated while the transfer goes on.
    """

    answer: Number


class Doubt(Message, frozen=True, tag="doubt"):
    """Joiner to source: the digest of ``chunk`` as it came from you is wrong."""

    chunk: Number


class Done(Message, frozen=True, tag="done"):
    """Joiner to source: close the grant. ``outcome`` is ``ok`` or why not.

    ``taken`` is how many bytes have come under it, for sources that do no work per byte; 0 from versions that did not
    say.
    """

    outcome: Words
    taken: Number = 0


class Drain(Message, frozen=True, tag="drain"):
    """Operator to worker: leave, and tell ``asker`` about it. ``transfer`` names the request."""

    asker: Id
    number: Number


class Departure(Reply, frozen=True, tag="departure"):
    """Worker to operator: I leave, and so many ``transfers`` are in flight; ``over``: nothing is lent any more."""

    transfers: Number
    over: bool


class Knock(Message, frozen=True, tag="knock"):
    """Worker to another one of its name: do you live? ``held``: for how many milliseconds the name has been ours."""

    asker: Id
    number: Number
    held: Number
    host: Host = ""


class Present(Reply, frozen=True, tag="present"):
    """The answer to :class:`Knock`: I live, and have had the name for ``held`` milliseconds."""

    held: Number


AnyMessage = Hello | Offer | Progress | Refusal | Accept | Doubt | Done | Drain | Departure | Knock | Present

_decoder = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: AnyMessage) -> bytes:
    """The message as bytes; raises BadMessage when it would be refused by every receiver."""
    body = msgspec.msgpack.encode(message)
    if len(body) > MAX_BYTES:
        raise BadMessage(f"{type(message).__name__} of {len(body)} bytes is over {MAX_BYTES}")
    return body


def decode(body: bytes) -> AnyMessage:
    """The message in ``body``; raises BadMessage, and only that, for anything else."""
    if len(body) > MAX_BYTES:
        raise BadMessage(f"letter of {len(body)} bytes is over {MAX_BYTES}")
    try:
        message = _decoder.decode(body)
    except UNREADABLE as error:
        raise BadMessage(f"letter is not a message: {error}") from error
    if message.version != VERSION:
        raise BadMessage(f"message of version {message.version}, this worker speaks {VERSION}")
    return message
