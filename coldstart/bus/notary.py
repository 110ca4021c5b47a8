"""Seals what goes over the bus and proves what comes from it, by the fleet's keys and the store's clock.

Decides what the present time of the store is taken to be, and what is proven about a letter, an advert, a truth
or a vote. It must not know the store's operations: which of them needs what is in ``sealed.py``. What a seal is,
is decided in ``coldstart.seals``.

Short facts that many state alike (a digest, the record of a truth, a yes of a rank) have no envelope, but a proof of
16 bytes that stands beside them in the store: it binds to what they are, not to when they were said.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import math
import secrets
from collections.abc import Awaitable, Callable

import anyio
import msgspec

from coldstart.errors import BusError, Unproven
from coldstart.identity import UNREADABLE
from coldstart.ports import Advert
from coldstart.refusals import Refusals
from coldstart.seals import (
    NONCE_BYTES,
    PROOF_BYTES,
    WINDOW_SECONDS,
    Envelope,
    Key,
    Keys,
    Place,
    Purpose,
    Window,
    Word,
    opened,
    seal,
)

CLOCK_SECONDS = 10.0
"""The store is asked for the time at most so often: its clock is set anew, or another server takes over."""

ADVERT_SECONDS = 20.0
"""An advert that says nothing new keeps its seal for so long, so that it is no news to anybody."""


class Notary:
    """One worker's seals.

    Args:
        keys: those that count now.
        sender: how letters name their writer.
        time: asks the store; raises BusError.
    """

    def __init__(
        self,
        keys: Callable[[], Keys],
        namespace: str,
        sender: str,
        refusals: Refusals,
        time: Callable[[], Awaitable[float]],
    ) -> None:
        self._keys, self._namespace, self._sender = keys, namespace, sender
        self._refusals, self._time = refusals, time
        self._window = Window()
        self._ahead = math.nan
        """The store's clock less ours, in seconds."""
        self._asked = -math.inf
        self._advert: tuple[Advert, str, float, str] | None = None
        """The last advert, the key and the time of its seal, and that."""

    # ------------------------------------------------------------------------------------- the clock

    async def now(self) -> float:
        """The store's time, in seconds. Raises BusError only where it was never known."""
        if anyio.current_time() - self._asked >= CLOCK_SECONDS:
            await self._look_at_clock()
        return anyio.current_time() + self._ahead

    async def _look_at_clock(self) -> None:
        try:
            told = await self._time()
        except BusError:
            if math.isnan(self._ahead):
                raise
            return
        self._asked = anyio.current_time()
        self._ahead = told - self._asked

    async def _in_time(self, envelope: Envelope) -> float:
        """The store's time, by which the envelope is neither old nor from the future; it may have been set anew."""
        now = await self.now()
        try:
            self._window.check_time(envelope, now)
        except Unproven:
            if anyio.current_time() - self._asked < 1.0:
                raise
            await self._look_at_clock()
            now = await self.now()
            self._window.check_time(envelope, now)
        return now

    # ----------------------------------------------------------------------------------- letters

    async def sealed(self, body: bytes, shard: str, purpose: Purpose, to: str = "") -> bytes:
        """A letter to ``to``, or to whoever of the shard it reaches. Raises BusError: the time is not known."""
        return self._sealed(body, shard, purpose, to, await self.now(), WINDOW_SECONDS)

    def _sealed(self, body: bytes, shard: str, purpose: Purpose, to: str, at: float, life: float) -> bytes:
        nonce, place = secrets.token_bytes(NONCE_BYTES), Place(self._namespace, shard)
        key = self._keys().first
        return seal(body, key, place, purpose, to=to, sender=self._sender, at=at, life=life, nonce=nonce)

    async def letter(self, data: bytes, shard: str, inbox: str) -> bytes:
        """The body of a letter that came to ``inbox``, once.

        Raises:
            Unproven: it is not for us, not now, or nobody with our keys has written it.
            BusError: the time is not known.
        """
        envelope = opened(data, self._keys(), Place(self._namespace, shard))
        if envelope.purpose == "advert" or envelope.to not in ("", inbox):
            whom = envelope.to or "anybody"
            raise Unproven("misdirected", f"it is a sealed {envelope.purpose} of {envelope.sender} to {whom}")
        self._window.admit(envelope, await self._in_time(envelope))
        return envelope.body

    # ----------------------------------------------------------------------------------- adverts

    async def advert(self, shard: str, advert: Advert, seconds: float) -> Advert:
        """``advert`` with its seal. Raises BusError: the time is not known."""
        now, key = await self.now(), self._keys().first
        if self._advert is not None:
            known, ident, at, text = self._advert
            if known == advert and ident == key.ident and 0 <= now - at < min(ADVERT_SECONDS, WINDOW_SECONDS / 2):
                return msgspec.structs.replace(advert, seal=text)
        life = WINDOW_SECONDS + seconds
        envelope = self._sealed(msgspec.json.encode(advert), shard, "advert", advert.layout, now, life)
        text = base64.b64encode(envelope).decode()
        self._advert = (advert, key.ident, now, text)
        return msgspec.structs.replace(advert, seal=text)

    async def told(self, shard: str, advert: Advert) -> Advert:
        """What the advert's worker has sealed; or the advert as it is, with the reason why it is not to be believed."""
        try:
            inner = await self._unsealed(shard, advert)
        except Unproven as error:
            self._refusals.note(f"advert {error.reason}", f"the advert of {advert.worker}: {error}")
            return msgspec.structs.replace(advert, seal="", unproven=f"its advert is not proven: {error.what}"[:512])
        return msgspec.structs.replace(inner, used=advert.used, struck=advert.struck, seal="", unproven="")

    async def _unsealed(self, shard: str, advert: Advert) -> Advert:
        try:
            data = base64.b64decode(advert.seal, validate=True)
            envelope = opened(data, self._keys(), Place(self._namespace, shard))
            inner = msgspec.json.decode(envelope.body, type=Advert)
        except (binascii.Error, *UNREADABLE) as error:
            raise Unproven("malformed", "its seal is malformed") from error
        if envelope.purpose != "advert" or inner.worker != advert.worker or inner.layout != advert.layout:
            raise Unproven("misdirected", f"its seal is of {inner.worker} with the layout {inner.layout[:8]}")
        await self._in_time(envelope)
        return inner

    # ------------------------------------------------------------------------------------ proofs

    @property
    def signing(self) -> tuple[Key, ...]:
        """The keys of proofs: the first makes them, all are believed."""
        return self._keys().signing

    def proof(self, key: Key, use: str, *words: Word) -> bytes:
        """16 bytes that say that a holder of the key stated this."""
        return key.mac("proof", self._namespace, use, *words)[:PROOF_BYTES]

    def proves(self, proof: bytes | None, key: Key, use: str, *words: Word) -> bool:
        """Whether ``proof`` says so; a wrong one is counted, a missing one is not."""
        if proof is None:
            return False
        right = hmac.compare_digest(proof, self.proof(key, use, *words))
        if not right:
            self._refusals.note(f"{use} forged", f"a proof of {use} is not that of the key {key.ident}")
        return right

    def refused(self, reason: str, words: str) -> None:
        """Count what was not believed."""
        self._refusals.note(reason, words)


def place_of(key: Key, use: str, *words: str | bytes) -> str:
    """Under which layout's name proofs of this key are stated."""
    return hashlib.blake2b(msgspec.msgpack.encode((use, key.ident, *words)), digest_size=16).hexdigest()
