"""What the two sides say over the control connection, beside the bytes that the library moves.

Decides every byte of it and every bound on it. It must not know threads, grants or communicators.

    joiner: HELLO secret               source: ANSWER size of messages, cap, invitation; or a Word that says why not
    both:   build the pair             source: READY
    joiner: ASK spans, ...
    both:   move the messages that the spans give
    joiner: DONE                       and ASK again, or it closes: then both release the pair

Either side leaves with a Word that says why.

Where the fleet has keys, both sides prove theirs first, and all that follows is authenticated
(``coldstart.admission``); the joiner's hello has a number then, and no secret. Else who sees the ticket can read the
weights. Nothing is encrypted, and what the library moves is authenticated by the digest alone.
"""

from __future__ import annotations

import enum
import hashlib
import ipaddress
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from struct import Struct
from typing import Annotated, Final

import msgspec

from coldstart.admission import WANTS_PROOF, Hello
from coldstart.channels import Channel
from coldstart.errors import TransportError
from coldstart.layout import Span

MAX_TICKET: Final = 1024
MAX_SPANS: Final = 1 << 16
"""Spans of one request: bounds what a joiner can make a source remember (a few MiB)."""
MAX_INVITATION: Final = 1024
MESSAGE_BOUNDS: Final = (1 << 12, 1 << 30)
"""Bytes per message that a joiner accepts from a source."""
MAX_CTAS: Final = 32

_MAGIC: Final = b"CSN2"
_KEYED: Final = b"CSNK"
_HELLO: Final = Struct("!4s16s16s")
"""Magic with version, the transfer's hashed name, the secret; or, with keys, a number that is to be signed."""
_BATCH: Final = Struct("!HB")
_SPAN: Final = Struct("!QQ")
_SPANS_PER_BATCH: Final = 1024
_TERMS: Final = Struct("!IBH")
"""After OK: bytes per message, cap on CTAs (0: none), bytes of invitation that follow."""


class Word(enum.IntEnum):
    """One byte that says how things stand."""

    OK = 0
    DONE = 1
    REFUSED = 2
    BUSY = 3
    REVOKED = 4
    BAD_REQUEST = 5
    FAILED = 6
    ASK = 7
    READY = 8
    UNPROVEN = 9
    """Only who proves that it has a key of the fleet is admitted here."""


REASONS: Final = {
    Word.REFUSED: ("refused", "does not know this ticket"),
    Word.BUSY: ("refused", "has too many connections for this ticket"),
    Word.REVOKED: ("revoked", "has ended the grant"),
    Word.BAD_REQUEST: ("protocol", "says that the request is outside its layout"),
    Word.FAILED: ("closed", "could not go on"),
    Word.UNPROVEN: ("refused", WANTS_PROOF),
}
"""What a word of the other side means as an error."""


class Ticket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to reach one grant: a numeric address, so that no name is looked up for a peer."""

    host: Annotated[str, msgspec.Meta(min_length=2, max_length=64)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    secret: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    transfer: Annotated[str, msgspec.Meta(max_length=256)]

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @property
    def key(self) -> bytes:
        """The transfer's name in 16 bytes, which is what a hello carries."""
        return hashlib.blake2b(self.transfer.encode(), digest_size=16).digest()

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def decode_ticket(data: bytes) -> Ticket:
    """The ticket in ``data``, from a peer; anything else is a breach of the protocol."""
    if len(data) > MAX_TICKET:
        raise TransportError(f"ticket of {len(data)} bytes, at most {MAX_TICKET} allowed", reason="protocol")
    try:
        ticket = msgspec.msgpack.decode(data, type=Ticket)
        ipaddress.ip_address(ticket.host)
    except ValueError as error:  # msgspec's errors, text that is not UTF-8, and names are all of this kind
        raise TransportError(f"malformed ticket: {error}", reason="protocol") from error
    return ticket


# ---------------------------------------------------------------------------------------- frames


def hello(ticket: Ticket) -> bytes:
    return _HELLO.pack(_MAGIC, ticket.key, ticket.secret)


def keyed_hello(ticket: Ticket, number: bytes) -> bytes:
    """Of a joiner with keys: the secret is not shown, but signed."""
    return _HELLO.pack(_KEYED, ticket.key, number)


def read_hello(channel: Channel, seconds: float) -> Hello | None:
    """What the caller begins with, or None if this is not our protocol. ``seconds`` are for all of it."""
    magic: bytes
    transfer: bytes
    word: bytes
    magic, transfer, word = _HELLO.unpack(channel.receive(_HELLO.size, seconds))
    return Hello(transfer, word, magic == _KEYED) if magic in (_MAGIC, _KEYED) else None


def request(spans: Sequence[Span]) -> Iterator[bytes]:
    """The frames of a request: its word, and the spans in batches."""
    yield bytes([Word.ASK])
    for start in range(0, len(spans), _SPANS_PER_BATCH):
        batch = spans[start : start + _SPANS_PER_BATCH]
        more = start + len(batch) < len(spans)
        yield _BATCH.pack(len(batch), more) + b"".join(_SPAN.pack(span.offset, span.length) for span in batch)


def read_request(channel: Channel, seconds: float) -> list[Span] | None:
    """Whatever the peer asks for after its word, or None if that is too much; the caller compares it with the layout.
    """
    deadline = time.monotonic() + seconds
    spans: list[Span] = []
    more = True
    while more:
        count, more = _BATCH.unpack(channel.receive(_BATCH.size, deadline - time.monotonic()))
        if not 0 < count <= _SPANS_PER_BATCH or len(spans) + count > MAX_SPANS:
            return None
        data = channel.receive(count * _SPAN.size, deadline - time.monotonic())
        spans += [Span(offset, length) for offset, length in _SPAN.iter_unpack(data)]
    return spans


class Answer(msgspec.Struct, frozen=True):
    """The source's answer; only OK comes with the rest."""

    word: int
    message_bytes: int = 0
    ctas: int = 0
    invitation: bytes = b""

    def encode(self) -> bytes:
        if self.word != Word.OK:
            return bytes([self.word])
        return bytes([self.word]) + _TERMS.pack(self.message_bytes, self.ctas, len(self.invitation)) + self.invitation


def read_answer(channel: Channel, seconds: float) -> Answer:
    """The source's answer. Raises TransportError when it is outside its bounds."""
    deadline = time.monotonic() + seconds
    word = channel.receive(1, seconds)[0]
    if word != Word.OK:
        return Answer(word)
    message_bytes, ctas, length = _TERMS.unpack(channel.receive(_TERMS.size, deadline - time.monotonic()))
    low, high = MESSAGE_BOUNDS
    if not (low <= message_bytes <= high and ctas <= MAX_CTAS and length <= MAX_INVITATION):
        raise TransportError("the source's answer is outside its bounds", reason="protocol")
    return Answer(word, message_bytes, ctas, channel.receive(length, deadline - time.monotonic()))


def shut(sock: socket.socket) -> None:
    """Wake whoever waits for ``sock``; its owner closes it."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
