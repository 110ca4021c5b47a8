"""Looks at a fleet again and again: its adverts, and what its journals tell, over a store that may vanish.

Decides what one look is and how the next goes on from it. It only looks; what is made of it is ``watching.py``'s and
``journal.py``'s.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import msgspec

from coldstart import wiring
from coldstart.chronicle.reading import Chronicle
from coldstart.chronicle.starts import ColdStart
from coldstart.cli import journals
from coldstart.cli.output import note
from coldstart.cli.store import looked_at, nobody
from coldstart.errors import BusError
from coldstart.ports import Advert, Bus

AFRESH_SECONDS = 3600.0
"""After so long everything is read anew, so that what the store has forgotten is forgotten here, too."""


class Look(msgspec.Struct, frozen=True):
    """What was seen at one moment; ``now`` is in seconds of the epoch on this machine's clock."""

    now: float
    adverts: Mapping[str, tuple[Advert, ...]]
    starts: tuple[ColdStart, ...]


class Looker:
    """Made by :func:`looker`."""

    def __init__(self, redis: str | None, stack: AsyncExitStack) -> None:
        self._redis, self._stack = redis, stack
        self._bus: Bus | None = None
        self._lost = False
        self._forget()

    async def look_on(self) -> Look | None:
        """See what is there, or None while the store is lost: that it is, and that it is back, is told once each."""
        try:
            look = await self.look()
        except BusError as error:
            if not self._lost:
                note(f"the store is lost, and waited for: {error.what}")
            self._lost = True
            return None
        if self._lost:
            note("the store is back")
        self._lost = False
        return look

    async def look(self) -> Look:
        """See what is there now.

        Raises:
            BusError: the store cannot be reached; the next look tries again.
            ConfigError: a setting is wrong.
        """
        try:
            return await self._look(self._bus or await self._open())
        except BusError:
            await self._close()
            raise

    async def _look(self, bus: Bus) -> Look:
        if anyio.current_time() - self._since > AFRESH_SECONDS:
            self._forget()
        for shard in await bus.journals():
            self._read[shard] = await journals.read(bus, shard, self._chronicle, self._read.get(shard, "0-0"))
        adverts = {shard: tuple(await bus.adverts(shard)) for shard in await bus.shards()}
        return Look(time.time(), adverts, self._chronicle.starts)

    async def _open(self) -> Bus:
        settings = await looked_at(self._redis)
        if settings is None:
            raise BusError(nobody(self._redis), advice="start one with 'coldstart worker'")
        self._bus = await self._stack.enter_async_context(wiring.open_bus(settings, probe=True))
        return self._bus

    async def _close(self) -> None:
        """Go on with a new connection, maybe to another store: what its journal says is all read anew."""
        await self._stack.aclose()
        self._bus = None
        self._forget()

    def _forget(self) -> None:
        self._since, self._chronicle = anyio.current_time(), Chronicle()
        self._read: dict[str, str] = {}


@asynccontextmanager
async def looker(redis: str | None) -> AsyncIterator[Looker]:
    """Somebody who looks; connected from the first look on."""
    async with AsyncExitStack() as stack:
        yield Looker(redis, stack)
