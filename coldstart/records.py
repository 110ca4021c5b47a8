"""Records: what is said on a connection after both sides have proven themselves, so that nobody can change it.

Decides how bytes are cut into records, and that one counts only when it is the next one of its side::

    length (2 bytes, at least 1), that many bytes, MAC (16 bytes)

The MAC is HMAC-SHA256 (RFC 2104) by a key of the session and the side, over the record's number, its length and its
bytes, cut to 16 bytes (NIST SP 800-107 asks for at least 4). So nothing can be altered, left out, said twice, put in
another order, or sent back. Nothing is encrypted, and an end is not authenticated: a connection that is cut looks
like one whose peer has gone. It must not know sockets (``channels.py``), nor where the secret comes from
(``proofs.py``).
"""

from __future__ import annotations

import hmac
from struct import Struct
from typing import Final

from coldstart.errors import TransportError
from coldstart.proofs import Side

MAX_RECORD: Final = 16 * 1024
"""Bytes of one: so much is kept of what is not yet known to be right."""
MAC_BYTES: Final = 16

_LENGTH: Final = Struct("!H")
_COUNTED: Final = Struct("!QH")


class _Macs:
    """The MACs of one side's records, in order."""

    def __init__(self, secret: bytes, side: Side) -> None:
        self._key = hmac.digest(secret, side.encode(), "sha256")
        self._number = 0

    def next(self, data: bytes) -> bytes:
        """Of the record that comes next."""
        counted = _COUNTED.pack(self._number, len(data)) + data
        self._number += 1
        return hmac.digest(self._key, counted, "sha256")[:MAC_BYTES]


class Writer:
    """What ``side`` says, as records. One call at a time, and all that it gives is sent in that order."""

    def __init__(self, secret: bytes, side: Side) -> None:
        self._macs = _Macs(secret, side)

    def records(self, data: bytes) -> bytes:
        """``data`` in as many records as it takes."""
        pieces = [data[start : start + MAX_RECORD] for start in range(0, len(data), MAX_RECORD)]
        return b"".join(_LENGTH.pack(len(piece)) + piece + self._macs.next(piece) for piece in pieces)


class Reader:
    """What ``side`` has said, out of its records; ``peer`` is who that is, in words."""

    def __init__(self, secret: bytes, side: Side, peer: str) -> None:
        self._macs, self._peer = _Macs(secret, side), peer
        self._head, self._body = bytearray(), bytearray()

    @property
    def wanted(self) -> int:
        """Bytes until there is something to check: reading so many never takes anything of the record after it."""
        if len(self._head) < _LENGTH.size:
            return _LENGTH.size - len(self._head)
        return self._length + MAC_BYTES - len(self._body)

    @property
    def _length(self) -> int:
        length: int
        (length,) = _LENGTH.unpack(self._head)
        return length

    def feed(self, data: bytes) -> bytes:
        """Take at most :attr:`wanted` bytes; returns the record's bytes when it is complete, and right.

        Raises:
            TransportError: it is not the next one of its side, or too long; nothing after it counts.
        """
        if len(self._head) < _LENGTH.size:
            self._head += data
            if len(self._head) == _LENGTH.size and not 0 < self._length <= MAX_RECORD:
                raise self._strange(f"it begins a record of {self._length} bytes, 1 to {MAX_RECORD} are allowed")
            return b""
        self._body += data
        if self.wanted:
            return b""
        told, mac = bytes(self._body[:-MAC_BYTES]), bytes(self._body[-MAC_BYTES:])
        if not hmac.compare_digest(self._macs.next(told), mac):
            raise self._strange("it was changed, said again, or something before it was left out")
        self._head.clear()
        self._body.clear()
        return told

    def _strange(self, why: str) -> TransportError:
        return TransportError(f"what came from {self._peer} is not authentic: {why}", reason="protocol")
