"""A grant's notice board: what a source says to a joiner that reads its memory behind its back.

A one-sided read cannot be refused by the process that is read. So each grant has a small file
in memory (memfd), which the source writes and the joiner opens through ``/proc``: it says
whether the grant is open, until when, how fast it may be read, and where the bytes lie.

The other direction is a lock. The joiner holds a shared lock on the file for as long as it
reads, and takes it *before* it looks whether the grant is open; the source closes the grant
*before* it looks for locks. So once the source sees no lock, nobody reads and nobody will. The
kernel drops the lock of a joiner that dies, and it lets the source see who reads.

This binds joiners that keep to it. Another one is held back by nothing but the permission of the
kernel, which it had without a grant. The module must not know what the bytes mean.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Sequence
from struct import Struct
from typing import Annotated, Final

import msgspec

from coldstart.errors import TransportError
from coldstart.ports import Region
from coldstart_cma import host, native

MAX_TICKET: Final = 1024
MAX_REGIONS: Final = 1 << 18
"""Regions of one memory: bounds what a joiner reads before the first byte (6 MiB)."""

_NOTICE: Final = Struct("<16s?7xdd")
_REGIONS_AT: Final = 64
_REGION: Final = Struct("<QQQ")
_LOCK: Final = Struct("hhqqi4x")
"""struct flock of 64-bit Linux."""


class Ticket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which process of which host has the board, under which descriptor; ``token`` is in its name."""

    host: Annotated[str, msgspec.Meta(max_length=128)]
    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    started: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    descriptor: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    token: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]


class Notice(msgspec.Struct, frozen=True):
    """What the board says now; ``until`` on the host's monotonic clock, ``bytes_per_second`` 0 for no cap."""

    token: bytes
    granted: bool
    until: float
    bytes_per_second: float

    @property
    def open(self) -> bool:
        return self.granted and time.monotonic() < self.until


class Place(msgspec.Struct, frozen=True, order=True):
    """Bytes of the stream, from ``offset`` on, that lie together at an address of the source."""

    offset: int
    address: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


def decode_ticket(data: bytes) -> Ticket:
    """The ticket in ``data``, from a peer on this host. Raises TransportError for anything else."""
    if len(data) > MAX_TICKET:
        raise TransportError(f"cma ticket of {len(data)} bytes, at most {MAX_TICKET} allowed", reason="protocol")
    try:
        ticket = msgspec.msgpack.decode(data, type=Ticket)
    except ValueError as error:
        raise TransportError(f"malformed cma ticket: {error}", reason="protocol") from error
    if ticket.host != host.identity():
        raise TransportError(
            "the cma ticket is from another machine, or from another container of this one",
            reason="refused",
            advice="use cma between workers that share a host and a process-number namespace",
        )
    return ticket


class Board:
    """The source's end. Its calls take microseconds.

    Raises:
        TransportError: too many regions, or no descriptor is left.
    """

    def __init__(self, regions: Sequence[Region], seconds: float) -> None:
        if len(regions) > MAX_REGIONS:
            words = f"cma cannot offer {len(regions)} pieces of memory, at most {MAX_REGIONS}"
            raise TransportError(words, reason="unsupported")
        self._token = secrets.token_bytes(16)
        self._until = time.monotonic() + seconds
        try:
            self._descriptor = os.memfd_create(_name(self._token), os.MFD_CLOEXEC)
        except OSError as error:
            raise TransportError(f"cma cannot offer memory: {error.strerror}", reason="exhausted") from error
        places = (_REGION.pack(region.offset, region.address, region.length) for region in regions)
        os.pwrite(self._descriptor, b"".join(places), _REGIONS_AT)
        self.post(granted=True)

    @property
    def ticket(self) -> bytes:
        pid = os.getpid()
        return msgspec.msgpack.encode(
            Ticket(host.identity(), pid, host.started(pid), self._descriptor, self._token)
        )

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self._until

    def post(self, *, granted: bool, bytes_per_second: float = 0.0) -> None:
        """Tell whoever reads under this grant."""
        os.pwrite(self._descriptor, _NOTICE.pack(self._token, granted, self._until, bytes_per_second), 0)

    def watched(self) -> bool:
        """Whether somebody reads under this grant."""
        wanted = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind: int = _LOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, wanted))[0]
        return kind != fcntl.F_UNLCK

    def close(self) -> None:
        """Take it away; who still has it open reads what was posted last."""
        os.close(self._descriptor)


class OpenBoard:
    """The joiner's end; between :meth:`open` and :meth:`close` its source sees that it is read."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._descriptor = -1
        self.places: Sequence[Place] = ()

    def open(self) -> None:
        """Find out where the bytes lie. Blocks, but for nobody.

        Raises:
            TransportError: the source has ended, has taken the board away, or may not be looked into.
        """
        self.check_source()
        self._descriptor = _opened(self._ticket)
        self._lock(fcntl.F_RDLCK)
        self.notice()
        self.places = self._read_places()

    def notice(self) -> Notice:
        """What the board says now. Raises TransportError if that is the end of the grant."""
        notice = Notice(*_NOTICE.unpack(os.pread(self._descriptor, _NOTICE.size, 0)))
        if notice.token != self._ticket.token or not notice.open:
            raise _over(self._ticket)
        return notice

    def check_source(self) -> None:
        """Raises TransportError unless the process of the ticket is still the one of that number."""
        if host.started(self._ticket.pid) != self._ticket.started:
            raise TransportError(f"cma source process {self._ticket.pid} has ended", reason="closed")

    def close(self) -> None:
        """Nothing is read any more."""
        if self._descriptor >= 0:
            self._lock(fcntl.F_UNLCK)  # closing would not do where a fork has a copy of the descriptor
            os.close(self._descriptor)
            self._descriptor = -1

    def _lock(self, kind: int) -> None:
        fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, 0, 0, 0))

    def _read_places(self) -> Sequence[Place]:
        size = min(os.fstat(self._descriptor).st_size - _REGIONS_AT, MAX_REGIONS * _REGION.size)
        table = b""
        while more := os.pread(self._descriptor, size - len(table), _REGIONS_AT + len(table)):
            table += more
        return sorted(Place(*fields) for fields in _REGION.iter_unpack(table))


def _name(token: bytes) -> str:
    return f"coldstart-cma-{token.hex()}"


def _opened(ticket: Ticket) -> int:
    path = f"/proc/{ticket.pid}/fd/{ticket.descriptor}"
    try:
        if os.readlink(path) != f"/memfd:{_name(ticket.token)} (deleted)":  # opening another file might do something
            raise _over(ticket)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        raise _over(ticket) from None
    except PermissionError:
        words = f"cma source process {ticket.pid} may not be looked into by this process"
        raise TransportError(words, reason="refused", advice=native.PTRACE_ADVICE) from None


def _over(ticket: Ticket) -> TransportError:
    return TransportError(f"cma source process {ticket.pid} has ended the grant", reason="revoked")
