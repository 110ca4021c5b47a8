"""Who is admitted at a source's port: by the ticket's secret or, where the fleet has keys, by a proof of both sides.

Decides the course of the proof for transports whose control connection is a :class:`Channel`, and what is said of
who fails it; what is signed is in ``proofs.py``. It must not know grants, nor the frames of any transport: those bring
the hello, and answer who has no keys. How tcp says the same is in ``transports/wire.py``.

    joiner: hello transfer, number     source: GO, number (or why not, then it closes)
    joiner: proof by key               source: GO, proof by key (or why not, then it closes)

Then both sides authenticate all that they say. The joiner proves itself first; sizes are fixed, and all of it has one
deadline, so that a stranger costs no more than it does without keys.
"""

from __future__ import annotations

import enum
import hmac
import logging
import secrets
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from coldstart.channels import Channel
from coldstart.errors import TransportError
from coldstart.ports import Signer
from coldstart.proofs import NUMBER_BYTES, PROOF_BYTES, Exchange
from coldstart.refusals import Refusals

_log = logging.getLogger(__name__)

Drawn = Callable[[int], bytes]
"""So many random bytes that were never used before."""


class Hello(NamedTuple):
    """How a joiner begins: ``word`` is the ticket's secret or, where it is ``keyed``, its number."""

    transfer: bytes
    word: bytes
    keyed: bool


class Claim(NamedTuple):
    """What both sides know of a grant by its ticket: the transport's name, the transfer's in 16 bytes, the secret."""

    transport: str
    transfer: bytes
    secret: bytes


class _Word(enum.IntEnum):
    """One byte of the source's on the way to a session."""

    GO = 0
    REFUSED = 1
    UNPROVEN = 2
    KEYLESS = 3


WANTS_PROOF: Final = "wants a proof by a key that it knows (COLDSTART_KEYS)"
"""What a source says to a joiner without keys, or with others."""

_REFUSALS: Final = {
    _Word.REFUSED: "does not know this ticket",
    _Word.UNPROVEN: WANTS_PROOF,
    _Word.KEYLESS: "has no keys by which it could prove itself (COLDSTART_KEYS)",
}


class Verdict(enum.Enum):
    """What becomes of a caller."""

    ADMITTED = "admitted"
    REFUSED = "refused"
    """It does not know the secret; it has not been told yet."""
    UNPROVEN = "unproven"
    """It has come without keys; it has not been told yet."""
    TURNED_AWAY = "turned away"
    """It has been told why."""


# ------------------------------------------------------------------------------------ the joiner


def prove(
    channel: Channel,
    signer: Signer,
    claim: Claim,
    hello: Callable[[bytes], bytes],
    peer: str,
    seconds: float,
    drawn: Drawn = secrets.token_bytes,
) -> None:
    """Prove that we have a key of the fleet, have the source prove the same, and authenticate what follows.

    Args:
        hello: the transport's frame that names the transfer and carries our number.
        peer: the source in words.
        seconds: for all of it.

    Raises:
        OSError: the source has gone, or takes too long.
        TransportError: either side has no key that the other one knows.
    """
    until, ours = time.monotonic() + seconds, drawn(NUMBER_BYTES)
    channel.send(hello(ours), until - time.monotonic())
    _go(channel, peer, until)
    exchange = Exchange(*claim, ours, channel.receive(NUMBER_BYTES, until - time.monotonic()))
    proof = exchange.proof(signer, "joiner")
    channel.send(proof, until - time.monotonic())
    _go(channel, peer, until)
    theirs = channel.receive(PROOF_BYTES, until - time.monotonic())
    secret = exchange.session(signer, proof) if exchange.proven(signer, "source", theirs) else None
    if secret is None:
        raise TransportError(f"{peer} does not prove that it has a key of the fleet", reason="refused")
    channel.authenticate(secret, "joiner", peer)


def _go(channel: Channel, peer: str, until: float) -> None:
    word = channel.receive(1, until - time.monotonic())[0]
    if word in _REFUSALS:
        raise TransportError(f"{peer} {_REFUSALS[_Word(word)]}", reason="refused")
    if word != _Word.GO:
        raise TransportError(f"{peer} broke the protocol: it said {word}", reason="protocol")


# ------------------------------------------------------------------------------------ the source


class Keyless:
    """Says that joiners with keys come to a source that has none: the 1st, 2nd, 4th, 8th, ... time. Any thread."""

    def __init__(self, transport: str) -> None:
        self._words = f"{transport} source: a joiner with keys is refused, there are none here (COLDSTART_KEYS)"
        self._refusals = Refusals()
        self._refusals.heard = lambda reason, words, count: _log.warning("%s, %d times so far", words, count)

    def note(self) -> None:
        """One more has come."""
        self._refusals.note("keyless", self._words)


class Doorkeeper:
    """Judges the callers of one port. Any thread.

    Args:
        transport: by its name.
        signer: of the fleet, if it has keys.
    """

    def __init__(self, transport: str, signer: Signer | None, drawn: Drawn = secrets.token_bytes) -> None:
        self._transport, self._signer, self._drawn = transport, signer, drawn
        self._keyless = Keyless(transport)

    def judge(self, channel: Channel, hello: Hello, secret: bytes | None, until: float) -> Verdict:
        """Have the caller prove that it may read under the grant whose ticket has ``secret``; None: there is none.

        Args:
            until: monotonic seconds; a caller that takes longer ends by OSError.
        """
        if not hello.keyed:
            return self._by_secret(hello, secret)
        refusal = _Word.KEYLESS
        if self._signer is None:
            self._keyless.note()
        elif secret is None:
            refusal = _Word.REFUSED
        elif self._proves(channel, self._signer, Claim(self._transport, hello.transfer, secret), hello.word, until):
            return Verdict.ADMITTED
        else:
            refusal = _Word.UNPROVEN
        channel.send(bytes([refusal]), until - time.monotonic())
        return Verdict.TURNED_AWAY

    def _by_secret(self, hello: Hello, secret: bytes | None) -> Verdict:
        if self._signer is not None:
            self._signer.unproven(f"{self._transport} joiner")
            return Verdict.UNPROVEN
        if secret is None or not hmac.compare_digest(secret, hello.word):
            return Verdict.REFUSED
        return Verdict.ADMITTED

    def _proves(self, channel: Channel, signer: Signer, claim: Claim, number: bytes, until: float) -> bool:
        ours = self._drawn(NUMBER_BYTES)
        channel.send(bytes([_Word.GO]) + ours, until - time.monotonic())
        exchange = Exchange(*claim, number, ours)
        proof = channel.receive(PROOF_BYTES, until - time.monotonic())
        secret = exchange.session(signer, proof) if exchange.proven(signer, "joiner", proof) else None
        if secret is None:
            return False
        channel.send(bytes([_Word.GO]) + exchange.proof(signer, "source"), until - time.monotonic())
        channel.authenticate(secret, "source", "the joiner")
        return True
