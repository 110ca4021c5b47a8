"""Reads the journal that the store keeps, for commands that only look.

Decides which store is asked and how much of its journal is read: all of it, which is bounded. Like ``coldstart peers``
it starts no embedded server. What the entries tell is put together in ``coldstart.chronicle``.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

import anyio.to_thread
import msgspec

from coldstart import wiring
from coldstart.chronicle.reading import Chronicle
from coldstart.config import Settings
from coldstart.errors import ConfigError
from coldstart.ports import Bus

PAGE = 256
"""Entries in one call."""


async def survey(settings: Settings) -> tuple[Chronicle, str]:
    """Everything that the store's journals tell; and, should that be nothing, what it means.

    Raises:
        ConfigError: coordination is switched off.
        BusError: the store does not answer.
    """
    if settings.redis == "none":
        raise ConfigError("coordination is switched off, so there is no journal", advice="give --redis URL")
    chronicle = Chronicle()
    if not settings.redis:
        url = await anyio.to_thread.run_sync(_running, settings, abandon_on_cancel=True)
        if not url:
            where = settings.embedded_directory
            return chronicle, f"no worker of this machine runs a store in {where}, and its journal ends with it"
        settings = msgspec.structs.replace(settings, redis=url)
    async with wiring.open_bus(settings, probe=True) as bus:
        for shard in await bus.journals():
            await read(bus, shard, chronicle)
    if chronicle.unreadable:
        return chronicle, f"{chronicle.unreadable} entries of the store's journal cannot be read by this version"
    return chronicle, f"the store has no journal under the namespace {settings.namespace!r}"


async def read(bus: Bus, shard: str, chronicle: Chronicle, after: str = "0-0") -> str:
    """Let ``chronicle`` hear all entries of a shard after the one named; returns the last one's id, to go on from."""
    while page := await bus.recorded(shard, after, PAGE):
        chronicle.take(page)
        after = page[-1].id
    return after


def _running(settings: Settings) -> str:
    embedded = import_module("coldstart.bus.embedded")
    return cast(str, embedded.running(settings.embedded_directory))
