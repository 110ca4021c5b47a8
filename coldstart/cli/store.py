"""The store as commands see it that only look: they start none, and write nothing that outlives them.

Decides which store that is. What is in it is each command's matter.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

import anyio.to_thread
import msgspec

from coldstart import config
from coldstart.config import Settings
from coldstart.errors import ConfigError


async def looked_at(redis: str | None) -> Settings | None:
    """The settings with the URL of the store that is there; None where no worker of this machine runs one.

    Raises:
        ConfigError: a setting is wrong, or coordination is switched off.
    """
    settings = config.load({"redis": redis})
    if settings.redis == "none":
        raise ConfigError("coordination is switched off, so there is nothing to see", advice="give --redis URL")
    if settings.redis:
        return settings
    url = await anyio.to_thread.run_sync(_running, settings, abandon_on_cancel=True)
    return msgspec.structs.replace(settings, redis=url) if url else None


def nobody(redis: str | None) -> str:
    """What it means that there is no store."""
    return f"no worker of this machine runs a store in {config.load({'redis': redis}).embedded_directory}"


def _running(settings: Settings) -> str:
    embedded = import_module("coldstart.bus.embedded")
    return cast(str, embedded.running(settings.embedded_directory))
