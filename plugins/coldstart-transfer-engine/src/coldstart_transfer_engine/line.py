"""What source and joiner say to each other beside the library: ticket, hello, table, notices.

A one-sided read cannot be refused, and it may succeed although the source is dead: device memory that
another process has mapped outlives its owner, epoch words in it included. So each pull keeps a plain TCP
connection to the very process that gave the ticket, the line, for as long as it reads. The source says on it that
the grant has ended, and how fast may be read; the joiner closes it when it reads no more; the
kernel closes it for whichever process dies.

    joiner: HELLO (transfer, secret)        source: ANSWER (OK, terms, table), or why not
                                            source: NOTICE whenever the terms change
    joiner closes: it reads no more         source closes: it has ended

Where the fleet has keys, both sides prove theirs before the answer, and answer and notices are authenticated
(``coldstart.admission``); the joiner's hello has a number then, and no secret. The library's own ports know
neither ticket nor key.

Decides every byte of it and every bound. It must not know the library; the source's side is
``lender.py``, the joiner's is :class:`Line`.
"""

from __future__ import annotations

import enum
import hashlib
import ipaddress
import os
import select
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from struct import Struct
from typing import Annotated, Final, Literal

import msgspec

from coldstart.admission import WANTS_PROOF, Claim, Hello, prove
from coldstart.channels import Channel
from coldstart.errors import TransportError
from coldstart.ports import Signer
from coldstart_transfer_engine.places import MAX_PLACES, PLACE_BYTES, Table

NAME: Final = "transfer-engine"
MAX_TICKET: Final = 2048
HELLO_SECONDS: Final = 2.0
VERDICT_SECONDS: Final = 0.5
"""How long a failed read waits for the line to say why."""

_MAGIC: Final = b"CTE1"
_KEYED: Final = b"CTEK"
_HELLO: Final = Struct("!4s16s16s")
HELLO_BYTES: Final = _HELLO.size
_ANSWER: Final = Struct("!BddI")
_NOTICE: Final = Struct("!Bd")
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 3), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3))
"""A machine that vanishes without a word is noticed after 9 s."""
_LONGEST_WAIT: Final = 3600.0


class Status(enum.IntEnum):
    """First byte of an answer or a notice."""

    OK = 0
    REFUSED = 1
    REVOKED = 2
    UNPROVEN = 3
    """Only who proves that it has a key of the fleet is admitted here."""


class Way(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An engine of the source, and what it moves bytes over."""

    route: Literal["tcp", "nvlink", "rdma"]
    session: Annotated[str, msgspec.Meta(min_length=3, max_length=128)]
    data_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    """Where its TCP serves bytes."""


class Ticket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to reach one grant: the line's address and secret, the engines, and where the source is."""

    host: Annotated[str, msgspec.Meta(min_length=7, max_length=15)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    secret: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    transfer: Annotated[str, msgspec.Meta(max_length=256)]
    machine: Annotated[str, msgspec.Meta(max_length=64)]
    process: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    ways: Annotated[tuple[Way, ...], msgspec.Meta(min_length=1, max_length=3)]

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @property
    def key(self) -> bytes:
        """The transfer's name in 16 bytes, which is what a hello carries."""
        return key_of(self.transfer)


def key_of(transfer: str) -> bytes:
    return hashlib.blake2b(transfer.encode(), digest_size=16).digest()


def decode_ticket(data: bytes) -> Ticket:
    """The ticket in ``data``, from a peer. Raises TransportError for anything else."""
    if len(data) > MAX_TICKET:
        raise TransportError(f"ticket of {len(data)} bytes, at most {MAX_TICKET} allowed", reason="protocol")
    try:
        ticket = msgspec.msgpack.decode(data, type=Ticket)
        ipaddress.IPv4Address(ticket.host)
    except ValueError as error:
        raise TransportError(f"malformed transfer engine ticket: {error}", reason="protocol") from error
    return ticket


@cache
def machine() -> str:
    """This boot of this machine; empty where that cannot be told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def tend(sock: socket.socket) -> None:
    """Small frames at once, room for a whole table, and an end even if the other machine vanishes."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MAX_PLACES * PLACE_BYTES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


# ---------------------------------------------------------------------------------- the source's words


def read_hello(channel: Channel) -> Hello | None:
    """What the caller begins with, or None if this is not our protocol. Raises OSError, at the latest in 2 s."""
    magic: bytes
    transfer: bytes
    word: bytes
    magic, transfer, word = _HELLO.unpack(channel.receive(_HELLO.size, HELLO_SECONDS))
    return Hello(transfer, word, magic == _KEYED) if magic in (_MAGIC, _KEYED) else None


def answer(status: Status, seconds: float = 0.0, rate: float = 0.0, table: Table | None = None) -> bytes:
    """``seconds``: life of the grant; ``rate``: bytes per second that may be read, 0 for no cap."""
    places = table.encode() if table is not None else b""
    return _ANSWER.pack(status, seconds, rate, len(places) // PLACE_BYTES) + places


def notice(status: Status, rate: float = 0.0) -> bytes:
    return _NOTICE.pack(status, rate)


# ----------------------------------------------------------------------------------- the joiner's end


def hello(ticket: Ticket) -> bytes:
    return _HELLO.pack(_MAGIC, ticket.key, ticket.secret)


def keyed_hello(ticket: Ticket, number: bytes) -> bytes:
    """Of a joiner with keys: the secret is not shown, but signed."""
    return _HELLO.pack(_KEYED, ticket.key, number)


class Line:
    """The joiner's end of a line. While it is open, the source knows that it is read.

    Args:
        seconds: the source may take so long to answer.
        signer: of the fleet, if it has keys.

    Raises:
        TransportError: nobody there, the grant is not, the answer is none of ours, or either side has no key that
            the other one knows.
    """

    def __init__(self, ticket: Ticket, seconds: float, signer: Signer | None = None) -> None:
        self._name = f"{ticket.host}:{ticket.port}"
        self._unread = b""
        try:
            self._sock = socket.create_connection((ticket.host, ticket.port), seconds)
        except OSError as error:
            raise TransportError(
                f"no transfer engine source at {self._name}: {error.strerror or error}", reason="unreachable"
            ) from error
        try:
            tend(self._sock)
            self._channel, deadline = Channel(self._sock), time.monotonic() + seconds
            self._greet(ticket, seconds, signer)
            self._greeted(deadline)
        except OSError as error:
            self.close()
            raise self._over("closed", f"said nothing: {error.strerror or error}") from error
        except BaseException:
            self.close()
            raise

    def _greet(self, ticket: Ticket, seconds: float, signer: Signer | None) -> None:
        if signer is None:
            self._channel.send(hello(ticket), seconds)
            return
        claim, peer = Claim(NAME, ticket.key, ticket.secret), f"the transfer engine source at {self._name}"
        prove(self._channel, signer, claim, partial(keyed_hello, ticket), peer, seconds)

    def _greeted(self, deadline: float) -> None:
        status: int
        seconds: float
        rate: float
        count: int
        data = self._channel.receive(_ANSWER.size, deadline - time.monotonic())
        status, seconds, rate, count = _ANSWER.unpack(data)
        if status != Status.OK:
            raise self._over("refused", WANTS_PROOF if status == Status.UNPROVEN else "does not know the grant")
        if count > MAX_PLACES:
            raise self._over("protocol", f"has {count} pieces of memory, at most {MAX_PLACES} allowed")
        self.table = Table.decode(self._channel.receive(count * PLACE_BYTES, deadline - time.monotonic()))
        self._rate, self._until = rate, time.monotonic() + seconds

    def rate(self) -> float:
        """Bytes per second that may be read now, 0 for no cap.

        Raises:
            TransportError: the grant has ended, or the source has. What was read last may be somebody else's then.
        """
        while True:
            try:
                data = self._channel.hear(_NOTICE.size * 16)
            except OSError as error:
                raise self._over("closed", f"has ended: {error.strerror or error}") from error
            if data is None:
                break
            if not data:
                raise self._over("closed", "has ended")
            self._unread += data
        while len(self._unread) >= _NOTICE.size:
            status: int
            status, self._rate = _NOTICE.unpack_from(self._unread)
            self._unread = self._unread[_NOTICE.size :]
            if status != Status.OK:
                raise self._over("revoked", "has ended the grant")
        if time.monotonic() >= self._until:
            raise self._over("revoked", "gave a grant that is over")
        return self._rate

    def wait(self, seconds: float) -> None:
        """Wait for a notice; returns early when there is one, or the end."""
        _wait([self._sock.fileno()], seconds)

    def wait_or(self, wake: int) -> None:
        """Wait for a notice, the end, or a number written to the event descriptor ``wake``, which is taken."""
        _wait([self._sock.fileno(), wake], max(self._until - time.monotonic(), 0.0))
        with suppress(BlockingIOError):
            os.eventfd_read(wake)

    def close(self) -> None:
        """Nothing is read any more."""
        self._sock.close()

    def _over(self, reason: str, what: str) -> TransportError:
        return TransportError(f"the transfer engine source at {self._name} {what}", reason=reason)


def _wait(descriptors: Iterable[int], seconds: float) -> None:
    """Until one of them can be read; of any number, which ``select`` cannot do."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    poll.poll(min(seconds, _LONGEST_WAIT) * 1000)
