"""Checks of what protects a fleet: keys for its messages, TLS to its store, the digest.

Decides which of them are missing where they could matter, in a line each. Nothing here fails for want of
protection: on a network and a store that only the fleet reaches none is needed (``docs/threat-model.md``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coldstart.cli.checks.check import Check, fail, ok, warn
from coldstart.config import Settings
from coldstart.errors import ConfigError, PluginUnavailable
from coldstart.keyring import read
from coldstart.membership import digester

_HINT = "see docs/threat-model.md for what that protects from"


def authentication(settings: Settings) -> Sequence[Check]:
    """The file of keys."""
    if not settings.keys:
        return [ok("authentication", f"messages are not authenticated (COLDSTART_KEYS); {_HINT}")]
    try:
        keys = read(Path(settings.keys))
    except ConfigError as error:
        return [fail("authentication", error.what, error.advice or "mend it: workers with this setting do not start")]
    finding = f"signs with {keys.first.ident}, believes {len(keys.signing)} key{'' if len(keys.signing) == 1 else 's'}"
    return [ok("authentication", finding)]


def digest(settings: Settings) -> Sequence[Check]:
    """Whether the digest can be computed here, and what it is good for."""
    try:
        keyed = digester(settings)
    except (ConfigError, PluginUnavailable) as error:
        return [fail("digest", error.what, error.advice or "workers with this setting do not start")]
    if keyed is None:
        return [ok("digest", "csfp1 finds faults, not forgers (COLDSTART_DIGEST)")]
    return [ok("digest", f"{keyed.algorithm}, keyed")]


def transport_security(settings: Settings) -> Sequence[Check]:
    """How the store is spoken to."""
    if not settings.redis or settings.redis == "none" or settings.redis.startswith("unix:"):
        return []
    if not settings.redis.startswith("rediss:"):
        return [ok("store TLS", f"the store is spoken to without TLS (rediss://); {_HINT}")]
    if "ssl_cert_reqs=none" in settings.redis:
        return [warn("store TLS", "the store's certificate is not checked", "leave ssl_cert_reqs out of the URL")]
    return [ok("store TLS", f"trusted by {settings.redis_ca or 'the certificates of this system'}")]
