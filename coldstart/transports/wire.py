"""What tcp peers say to each other: ticket, hello, request, answer; and moving views over a socket.

Decides every byte on the wire and every bound on it. All frames have a fixed size, so that a
peer can never make us allocate or wait for more than we asked for. It must not know threads,
grants or pacing. The source's side is ``tcp_source.py``, the joiner's side ``tcp_joiner.py``.

    joiner: HELLO                      source: ANSWER (OK, or why not, then it closes)
    joiner: REQUEST offset, length     source: ANSWER OK offset length, then `length` bytes
    ... several requests may be on their way; answers keep their order; closing ends it.

Where the fleet has keys (``proofs.py``), it begins otherwise:

    joiner: HELLO transfer, number     source: ANSWER OK, number (or why not, then it closes)
    joiner: PROOF by key               source: ANSWER OK, PROOF by key (or why not, then it closes)

That proves who is there when a connection begins. Nothing is encrypted, and bytes that follow are not signed: who
sees the ticket can read the weights, unless both sides have keys; who sits on the path can change them, and then the
digest refuses them, a keyed one (``COLDSTART_DIGEST``) even where they were chosen.
"""

from __future__ import annotations

import enum
import hashlib
import ipaddress
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from struct import Struct
from typing import Annotated, Final

import msgspec

from coldstart.admission import Hello
from coldstart.errors import TransportError
from coldstart.identity import UNREADABLE
from coldstart.layout import Span
from coldstart.transports.views import advanced, batches

_MAGIC: Final = b"CST1"
_KEYED: Final = b"CSK1"
_HELLO: Final = Struct("!4s16s16s")
"""Magic with version, the transfer's hashed name, the secret; or, with keys, a number that is to be signed."""
_REQUEST: Final = Struct("!QQ")
_ANSWER: Final = Struct("!BQQ")
NOWHERE: Final = Span(0, 0)
_AT_ONCE: Final = Struct("ii").pack(1, 0)
"""struct linger: closing waits for nothing and resets the connection."""

SLICE: Final = 4 * 1024 * 1024
"""Bytes per request at most: large enough to forget Python's cost, small enough to spread over connections."""
SMALLEST_SLICE: Final = 256 * 1024
"""Bytes per request where little is known of the speed, or it is low."""
MAX_REQUEST: Final = 16 * 1024 * 1024
"""A source refuses more: it bounds the staging memory that one request can ask for."""
MAX_TICKET: Final = 1024
MAX_CONNECTIONS: Final = 16
"""Per grant; a joiner that asks for more is told so."""


class Status(enum.IntEnum):
    """First byte of an answer."""

    OK = 0
    REFUSED = 1
    BUSY = 2
    REVOKED = 3
    BAD_REQUEST = 4
    FAILED = 5
    UNPROVEN = 6
    """Only who proves that it has a key of the fleet is admitted here."""
    KEYLESS = 7
    """There are no keys here by which anything could be proven."""


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
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def decode_ticket(data: bytes) -> Ticket:
    """The ticket in ``data``, from a peer; anything else is a breach of the protocol."""
    if len(data) > MAX_TICKET:
        raise TransportError(f"tcp ticket of {len(data)} bytes, at most {MAX_TICKET} allowed", reason="protocol")
    try:
        ticket = msgspec.msgpack.decode(data, type=Ticket)
        ipaddress.ip_address(ticket.host)
    except (ValueError, *UNREADABLE) as error:  # a name instead of an address is a ValueError
        raise TransportError(f"malformed tcp ticket: {error}", reason="protocol") from error
    return ticket


# ------------------------------------------------------------------------------ moving the bytes


def receive_into(
    sock: socket.socket, views: Iterable[memoryview], between: Callable[[], None] | None = None
) -> None:
    """Fill ``views`` completely; raises ConnectionError when the peer ends first.

    The socket's timeout bounds each call, that is: the time in which nothing at all arrives. ``between`` is called
    after each.
    """
    for batch in batches(views, MAX_REQUEST):
        while batch:
            count = sock.recvmsg_into(batch)[0]
            if count == 0:
                raise ConnectionResetError("closed by the peer")
            batch = advanced(batch, count)
            if between is not None:
                between()


def shut(sock: socket.socket) -> None:
    """Wake whoever blocks in ``sock``; its owner closes it."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def reset_on_close(sock: socket.socket) -> None:
    """Make the peer see at once that nobody reads any more, even one that waits for room to send in."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)


def _receive(sock: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    receive_into(sock, [memoryview(data)])
    return bytes(data)


# ---------------------------------------------------------------------------------------- frames


def hello(ticket: Ticket) -> bytes:
    return _HELLO.pack(_MAGIC, ticket.key, ticket.secret)


def keyed_hello(ticket: Ticket, number: bytes) -> bytes:
    """Of a joiner with keys: the secret is not shown, but signed (``proofs.py``)."""
    return _HELLO.pack(_KEYED, ticket.key, number)


def read_hello(sock: socket.socket, seconds: float) -> Hello | None:
    """What the caller begins with, or None if this is not our protocol."""
    magic: bytes
    transfer: bytes
    word: bytes
    magic, transfer, word = _HELLO.unpack(receive_by(sock, _HELLO.size, time.monotonic() + seconds))
    return Hello(transfer, word, magic == _KEYED) if magic in (_MAGIC, _KEYED) else None


def receive_by(sock: socket.socket, size: int, deadline: float) -> bytes:
    """``size`` bytes until ``deadline`` (monotonic seconds).

    The time is for all of it: a stranger that sends a byte now and then does not last longer.
    """
    data = b""
    while len(data) < size:
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        more = sock.recv(size - len(data))
        if not more:
            raise ConnectionResetError("closed by the peer")
        data += more
    return data


def request(span: Span) -> bytes:
    return _REQUEST.pack(span.offset, span.length)


def read_request(sock: socket.socket) -> Span:
    """Whatever the peer asked for; the caller checks it against the layout."""
    offset: int
    length: int
    offset, length = _REQUEST.unpack(_receive(sock, _REQUEST.size))
    return Span(offset, length)


def answer(status: Status, span: Span = NOWHERE) -> bytes:
    return _ANSWER.pack(status, span.offset, span.length)


def read_answer(sock: socket.socket) -> tuple[int, Span]:
    """Status (any byte) and the span that follows."""
    status: int
    offset: int
    length: int
    status, offset, length = _ANSWER.unpack(_receive(sock, _ANSWER.size))
    return status, Span(offset, length)
