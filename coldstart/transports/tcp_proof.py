"""How the two ends of a tcp connection prove to each other that they have a key of the fleet.

Decides what is signed: random numbers of both sides, the transfer, and the ticket's secret, which is not sent. Each
side signs under a name of its own, so that neither's proof serves for the other's. It must not know what a key is
(``ports.Signer``) nor who may read (``tcp_source.py``). Where there are no keys nothing of this is said.

    joiner: HELLO transfer, number         source: ANSWER OK, number (or why not, then it closes)
    joiner: PROOF by key                   source: ANSWER OK, PROOF by key (or why not, then it closes)

It proves who is there when a connection begins. Bytes that follow are neither encrypted nor signed: who sits on the
path can still change them, and then a keyed digest (``COLDSTART_DIGEST``) refuses them.
"""

from __future__ import annotations

import secrets
import socket
from struct import Struct
from typing import Final

from coldstart.ports import Signer
from coldstart.transports import wire
from coldstart.transports.wire import Ticket

JOINER: Final = "tcp joiner"
SOURCE: Final = "tcp source"

_PROOF: Final = Struct("!32s32s")
"""The key's name, filled up with zeros, and the signature."""


class Numbers:
    """What both sides of one connection have drawn."""

    def __init__(self, ticket: Ticket, joiner: bytes, source: bytes) -> None:
        self._words = (ticket.key, ticket.secret, joiner, source)

    def proof(self, signer: Signer, side: str) -> bytes:
        """The proof of this side, as it is sent."""
        key, mac = signer.sign(side, *self._words)
        return _PROOF.pack(key.encode(), mac)

    def proven(self, signer: Signer, side: str, proof: bytes) -> bool:
        """Whether the other side, ``side``, has a key that is known here."""
        key: bytes
        mac: bytes
        key, mac = _PROOF.unpack(proof)
        name = key.rstrip(b"\0")
        return name.isascii() and signer.proves(name.decode("ascii"), mac, side, *self._words)


def drawn() -> bytes:
    """A number that this side has never used before."""
    return secrets.token_bytes(wire.NUMBER_BYTES)


def read_proof(sock: socket.socket, deadline: float) -> bytes:
    """Whatever the other side says as its proof, until ``deadline`` (monotonic seconds)."""
    return wire.receive_by(sock, _PROOF.size, deadline)
