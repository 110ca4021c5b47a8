"""The bus in memory keeps the contract, and fails the way a server does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from coldstart.bus.memory import MemoryBus, MemoryStore
from coldstart.errors import BusError
from coldstart.ports import Cursor
from coldstart.testing.bus_contract import SHARD, BusContract, Connect, advert, claim


class TestMemoryBus(BusContract):
    """The contract, with time that only moves when told to."""

    now = 1000.0

    async def pass_time(self, seconds: float) -> None:
        self.now += seconds
        await anyio.lowlevel.checkpoint()

    @asynccontextmanager
    async def open_bus(self) -> AsyncIterator[Connect]:
        store = MemoryStore(now=lambda: self.now)

        async def connect() -> MemoryBus:
            return MemoryBus(store)

        yield connect


async def test_a_stopped_store_fails_every_call_and_every_listener() -> None:
    store = MemoryStore()
    bus, other = MemoryBus(store), MemoryBus(store)
    failed: list[BusError] = []

    async def listen() -> None:
        with pytest.raises(BusError, match="stopped") as caught:
            await bus.listen(SHARD, "in", Cursor(), 60)
        failed.append(caught.value)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        await anyio.wait_all_tasks_blocked()
        store.stop()
    assert failed
    with pytest.raises(BusError, match="stopped"):
        await other.claim(claim())


async def test_a_store_that_restarts_empty_renews_its_listeners() -> None:
    store = MemoryStore()
    bus = MemoryBus(store)
    before = (await bus.advertise(SHARD, advert("source"), 30)).epoch
    await bus.strike(SHARD, "source", "1", 0, b"doubt")
    cursor = (await bus.listen(SHARD, "in", Cursor(), 0)).cursor
    store.stop()
    store.start(empty=True)
    heard = await bus.listen(SHARD, "in", cursor, 5)
    assert heard.renewed
    assert heard.cursor.epoch != before
    assert await bus.adverts(SHARD) == ()
    await bus.advertise(SHARD, advert("source"), 30)
    assert await bus.adverts(SHARD) == (advert("source"),)
