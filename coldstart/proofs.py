"""What the two ends of a connection sign to prove that they have a key of the fleet.

Decides what is signed: the transport, the side that signs, random numbers of both sides, the transfer, and the
ticket's secret, which is not sent. Each side signs under a name of its own, so that neither's proof serves for the
other's, and none for another connection or transport. From the same words comes the secret of the session, by which
what follows is authenticated (``records.py``). It must not know what a key is (``ports.Signer``), nor sockets: how
proofs travel is in ``admission.py`` and, for tcp, in ``transports/wire.py``.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, Literal

from coldstart.ports import Signer

Side = Literal["joiner", "source"]

NUMBER_BYTES: Final = 16
"""Of the random number that each side draws for one connection."""

_PROOF: Final = Struct("!32s32s")
"""The key's name, filled up with zeros, and the signature."""

PROOF_BYTES: Final = _PROOF.size


class Exchange:
    """What both sides of one connection know of it.

    Args:
        transport: by its name.
        transfer: its name in 16 bytes, which is what a hello carries.
        secret: of the ticket.
        joiner: the number that the joiner has drawn; ``source`` is the source's.
    """

    def __init__(self, transport: str, transfer: bytes, secret: bytes, joiner: bytes, source: bytes) -> None:
        self._transport = transport
        self._words = (transfer, secret, joiner, source)

    def proof(self, signer: Signer, side: Side) -> bytes:
        """The proof of this side, as it is sent."""
        key, mac = signer.sign(f"{self._transport} {side}", *self._words)
        return _PROOF.pack(key.encode(), mac)

    def proven(self, signer: Signer, side: Side, proof: bytes) -> bool:
        """Whether the other side, ``side``, has a key that is known here."""
        key: bytes
        mac: bytes
        key, mac = _PROOF.unpack(proof)
        name = key.rstrip(b"\0")
        return name.isascii() and signer.proves(name.decode("ascii"), mac, f"{self._transport} {side}", *self._words)

    def session(self, signer: Signer, proof: bytes) -> bytes | None:
        """A secret of both sides for this connection, by the key of the joiner's ``proof``, which was right.

        None where that key has been dropped meanwhile.
        """
        key: bytes
        key, _ = _PROOF.unpack(proof)
        return signer.derive(key.rstrip(b"\0").decode("ascii"), f"{self._transport} session", *self._words)
