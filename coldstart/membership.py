"""What makes a worker a member of a fleet that shares keys: it seals, signs, and counts those who cannot.

Decides that all of it hangs on one setting: with a file of keys everything is sealed and signed, without one
nothing is; and which digest is computed. It must not know what is sealed (``bus/sealed.py``) nor what keys look
like (``keyring.py``).
"""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread

from coldstart.bus.notary import Notary
from coldstart.bus.sealed import SealedBus
from coldstart.config import Settings
from coldstart.errors import ConfigError
from coldstart.keyed import KeyedDigester
from coldstart.keyring import Keyring, read
from coldstart.ports import Bus, Digester
from coldstart.refusals import Refusals
from coldstart.signing import FleetSigner
from coldstart.telemetry import logger


class Membership:
    """One worker's keys, if its fleet has any.

    Args:
        sender: the name that it seals with, such as its inbox.
        namespace: what it seals is good for no other.
    """

    def __init__(self, keys: Keyring | None, sender: str, namespace: str) -> None:
        self._keys, self._sender, self._namespace = keys, sender, namespace
        self.refusals = Refusals()
        self.refusals.heard = self._tell

    @property
    def keyed(self) -> bool:
        return self._keys is not None

    @property
    def signer(self) -> FleetSigner | None:
        """For transports."""
        return None if self._keys is None else FleetSigner(self._keys, self.refusals)

    def sealed(self, bus: Bus) -> Bus:
        """``bus`` as a member uses it."""
        if self._keys is None:
            return bus
        return SealedBus(bus, Notary(self._keys, self._namespace, self._sender, self.refusals, bus.time))

    def _tell(self, reason: str, words: str, count: int) -> None:
        logger().warning("not believed", reason=reason, what=words[:300], count=count, reader=self._sender)


def digester(settings: Settings) -> Digester | None:
    """The keyed digester that the settings ask for; None: the usual one. Blocks.

    Raises:
        ConfigError: there is no key for it.
        PluginUnavailable: its library is not installed.
    """
    if settings.digest == "csfp1":
        return None
    key = read(Path(settings.keys)).digest if settings.keys else None
    if key is None:
        raise ConfigError(
            f"COLDSTART_DIGEST={settings.digest} needs a digest key in the file of keys (COLDSTART_KEYS)",
            advice="make both with: coldstart keys new FILE",
        )
    return KeyedDigester(settings.digest, key)


async def membership(settings: Settings, sender: str) -> Membership:
    """By the settings; raises ConfigError for a file of keys that cannot be used."""
    keys = await anyio.to_thread.run_sync(Keyring, Path(settings.keys)) if settings.keys else None
    return Membership(keys, sender, settings.namespace)
