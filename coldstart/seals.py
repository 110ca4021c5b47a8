"""Seals: who wrote this, for whom, when, and whether it was written before; by keys that the fleet shares.

Decides what a sealed letter looks like and why one is not believed. A seal is an HMAC-SHA256 (RFC 2104) over
everything that gives a letter its meaning: the namespace and shard that it is about, its purpose, the inbox that
it is for, its sender, the store's time, a random number, and the body. Several keys may be known: the first one
signs, all of them are believed, so that keys can be changed while workers run.

One key for a whole fleet proves that a member wrote it, not which one. Nothing is encrypted. This module must know
neither files (``keyring.py``) nor clocks nor the store; what is sealed on the bus is in ``bus/sealed.py``.
"""

from __future__ import annotations

import hmac
from collections import deque
from typing import Annotated, Literal

import msgspec

from coldstart.errors import Unproven
from coldstart.identity import UNREADABLE, Id

SECRET_BYTES = 32
"""Of a key: as many as the hash has, beyond which HMAC gains nothing."""

NONCE_BYTES = 16
MAC_BYTES = 32
PROOF_BYTES = 16
"""Of a MAC that stands beside a chunk's digest; NIST SP 800-107 asks for at least 4 for HMAC."""

WINDOW_SECONDS = 60.0
"""A letter is believed for so long. Handshakes take a second; clocks are the store's own, so this is for outages."""

MAX_REMEMBERED = 100_000
"""Letters that may arrive within the window: only those with a right seal count, a worker gets a few a second."""

MARK = b"CSS1"
"""How a sealed letter begins, behind the two bytes that msgpack puts before it; a new format gets another one."""

_HEAD = b"\x9a\xc4\x04" + MARK

Purpose = Literal["letter", "hello", "end", "doubt", "advert"]
"""What a sealed letter is for: to one inbox; to whoever the store grants; at the end of a slot; with a strike."""

Word = str | bytes | int

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Key(msgspec.Struct, frozen=True):
    """A secret and the name that it goes by; the name is no secret."""

    ident: str
    secret: bytes

    def mac(self, domain: str, *words: Word) -> bytes:
        """32 bytes that only a holder of the key can make of these words; equal words in another domain differ."""
        return hmac.digest(self.secret, msgspec.msgpack.encode((domain, *words)), "sha256")

    def __repr__(self) -> str:
        return f"Key({self.ident!r})"


class Keys(msgspec.Struct, frozen=True):
    """The keys that a worker knows at one moment.

    Args:
        signing: at least one; the first signs, all are believed.
        digest: what keyed digests are made with; it does not change when the others do.
    """

    signing: tuple[Key, ...]
    digest: Key | None = None

    @property
    def first(self) -> Key:
        return self.signing[0]

    def find(self, ident: str) -> Key | None:
        return next((key for key in self.signing if key.ident == ident), None)


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A sealed letter as it travels. ``at`` is the store's time in ms, ``life`` how long it is good for, in ms."""

    mark: Annotated[bytes, msgspec.Meta(min_length=4, max_length=4)]
    key: Id
    purpose: Purpose
    to: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.:-]{0,192}\Z")]
    sender: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.:-]{0,192}\Z")]
    at: _Number
    life: _Number
    nonce: Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
    body: bytes
    mac: Annotated[bytes, msgspec.Meta(min_length=MAC_BYTES, max_length=MAC_BYTES)]

    def mac_by(self, key: Key, place: Place) -> bytes:
        words = (self.purpose, self.to, self.sender, self.at, self.life, self.nonce, self.body)
        return key.mac("letter", self.mark, place.namespace, place.shard, *words)


class Place(msgspec.Struct, frozen=True):
    """Where on the bus: both ends know it, so that it is sealed and not sent."""

    namespace: str
    shard: str


_decoder = msgspec.msgpack.Decoder(Envelope)


def seal(
    body: bytes, key: Key, place: Place, purpose: Purpose, *, to: str, sender: str, at: float, life: float, nonce: bytes
) -> bytes:
    """``body`` in a sealed envelope; ``at`` and ``life`` in seconds."""
    bare = Envelope(MARK, key.ident, purpose, to, sender, round(at * 1000), round(life * 1000), nonce, body, b"")
    return msgspec.msgpack.encode(msgspec.structs.replace(bare, mac=bare.mac_by(key, place)))


def is_sealed(data: bytes) -> bool:
    """Whether this begins as a sealed letter does; nothing of it is checked."""
    return data.startswith(_HEAD)


def opened(data: bytes, keys: Keys, place: Place) -> Envelope:
    """The envelope in ``data``, made by a holder of one of ``keys`` for ``place``.

    Whether it is for the reader, in time and new is the reader's to say (:class:`Window`).

    Raises:
        Unproven: ``unsealed``, ``malformed``, ``unknown key`` or ``forged``.
    """
    if not is_sealed(data):
        raise Unproven("unsealed", "it has no seal", advice="give its sender the fleet's keys (COLDSTART_KEYS)")
    try:
        envelope = _decoder.decode(data)
    except UNREADABLE as error:
        raise Unproven("malformed", f"its envelope is malformed ({error})") from error
    key = keys.find(envelope.key)
    if key is None:
        raise Unproven(
            "unknown key", f"it is sealed with the key {envelope.key}", advice="give all workers the same file of keys"
        )
    if not hmac.compare_digest(envelope.mac_by(key, place), envelope.mac):
        raise Unproven("forged", f"its seal is not that of the key {envelope.key} for this shard and namespace")
    return envelope


class Window:
    """What has been read within the time in which it could be read again; times in seconds of the store's clock."""

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._most = most
        self._seen: set[bytes] = set()
        self._order: deque[tuple[float, bytes]] = deque()

    def check_time(self, envelope: Envelope, now: float) -> None:
        """Raises Unproven (``stale``) for what was written too long before or after ``now``."""
        age = now - envelope.at / 1000
        if age > envelope.life / 1000:
            raise Unproven("stale", f"it is {age:.0f} s old and was good for {envelope.life / 1000:g} s")
        if age < -WINDOW_SECONDS:
            raise Unproven("stale", f"it was written {-age:.0f} s from now by the store's clock")

    def admit(self, envelope: Envelope, now: float) -> None:
        """Take it in, once.

        Raises:
            Unproven: ``stale``, ``replayed``, or ``too many`` of them to remember.
        """
        self.check_time(envelope, now)
        while self._order and self._order[0][0] < now:
            self._seen.discard(self._order.popleft()[1])
        if envelope.nonce in self._seen:
            raise Unproven("replayed", "it has been read before")
        if len(self._seen) >= self._most:
            raise Unproven("too many", f"{self._most} letters came within their time")
        self._seen.add(envelope.nonce)
        self._order.append((now + envelope.life / 1000 + WINDOW_SECONDS, envelope.nonce))
