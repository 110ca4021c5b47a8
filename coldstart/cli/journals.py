"""Reads the journal that the store keeps, for commands that only look.

Decides how much of it is read: all, which is bounded. Which store is asked is decided in ``store.py``; what the
entries tell is put together in ``coldstart.chronicle``.
"""

from __future__ import annotations

from coldstart import wiring
from coldstart.chronicle.reading import Chronicle
from coldstart.cli.store import looked_at, nobody
from coldstart.ports import Bus

PAGE = 256
"""Entries in one call."""


async def survey(redis: str | None) -> tuple[Chronicle, str]:
    """Everything that the store's journals tell; and, should that be nothing, what it means.

    Raises:
        ConfigError: coordination is switched off.
        BusError: the store does not answer.
    """
    chronicle = Chronicle()
    settings = await looked_at(redis)
    if settings is None:
        return chronicle, f"{nobody(redis)}, and its journal ends with it"
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
