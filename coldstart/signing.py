"""The fleet's keys as transports use them: see :class:`coldstart.ports.Signer`.

Decides nothing but what is counted: a proof that fails is one stranger more.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable

from coldstart.refusals import Refusals
from coldstart.seals import Keys


class FleetSigner:
    """Signs and checks with the keys that count now."""

    def __init__(self, keys: Callable[[], Keys], refusals: Refusals) -> None:
        self._keys, self._refusals = keys, refusals

    def sign(self, domain: str, *words: bytes) -> tuple[str, bytes]:
        key = self._keys().first
        return key.ident, key.mac(domain, *words)

    def proves(self, key: str, mac: bytes, domain: str, *words: bytes) -> bool:
        known = self._keys().find(key)
        if known is None:
            self._refusals.note(f"{domain} unknown key", f"{domain} signs with a key that is not known here")
            return False
        if not hmac.compare_digest(known.mac(domain, *words), mac):
            self._refusals.note(f"{domain} forged", f"{domain} has not signed with the key {known.ident}")
            return False
        return True

    def derive(self, key: str, domain: str, *words: bytes) -> bytes | None:
        known = self._keys().find(key)
        return None if known is None else known.mac("derived", domain, *words)

    def unproven(self, domain: str) -> None:
        self._refusals.note(f"{domain} unproven", f"{domain} came without keys (COLDSTART_KEYS)")
