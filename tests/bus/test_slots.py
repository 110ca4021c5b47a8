"""A thousand joiners against one source with two slots: at no moment do more than two have one."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

from coldstart.bus.memory import MemoryBus, MemoryStore
from coldstart.bus.redis import RedisBus
from coldstart.plan import Limits
from coldstart.ports import Advert, Bus, Claim, Deferred, Granted
from coldstart.testing.simulator import Scenario, simulate
from tests.bus.conftest import Server

JOINERS = 1000
SLOTS = 2
WOKEN = 1
"""Waiting joiners that claim again when a slot has been given back: nobody waits in vain as long as it is one."""
CONNECTIONS = 8

SOURCE = Advert(
    worker="source", inbox="source.1", incarnation="1", generation=1, layout="aa", slots=SLOTS, have=1, total=1,
    transports=("tcp",), host="h", device="cpu",
)  # fmt: skip


class Crowd:
    """Joiners that claim all at once, and again when others have gone, until each has had the source once."""

    def __init__(self, buses: list[Bus]) -> None:
        self._buses = buses
        self._waiting: deque[anyio.Event] = deque()
        self.holding = self.most = self.most_told = self.served = 0

    async def join(self, number: int) -> None:
        bus, attempt = self._buses[number % len(self._buses)], 0
        while True:
            attempt += 1
            claim = Claim(
                shard="shard", layout="aa", worker=f"j{number}", transfer=f"t{number}.{attempt}", hello=b"hello",
                exclude=(), transports=("tcp",), lead_seconds=0.0, luck=number,
            )  # fmt: skip
            outcome = await bus.claim(claim)
            if isinstance(outcome, Granted):
                break
            assert isinstance(outcome, Deferred)
            if self.holding:  # else everybody left while the answer was on its way
                turn = anyio.Event()
                self._waiting.append(turn)
                await turn.wait()
        self.holding += 1
        self.most = max(self.most, self.holding)
        self.most_told = max(self.most_told, outcome.source.used)
        await anyio.lowlevel.checkpoint()
        self.holding -= 1
        await bus.release("shard", "source", claim.transfer)
        self.served += 1
        for _ in range(min(WOKEN, len(self._waiting))):
            self._waiting.popleft().set()


async def assert_never_more_than_its_slots(opened: Callable[[], Awaitable[Bus]]) -> None:
    buses = [await opened() for _ in range(CONNECTIONS)]
    await buses[0].advertise("shard", SOURCE, 60.0)
    crowd = Crowd(buses)
    async with anyio.create_task_group() as tasks:
        for number in range(JOINERS):
            tasks.start_soon(crowd.join, number)
    assert crowd.served == JOINERS
    assert crowd.most <= SLOTS
    assert crowd.most_told == SLOTS
    (advert,) = await buses[0].adverts("shard")
    assert advert.used == 0


async def test_a_source_in_memory_never_lends_more_than_its_slots() -> None:
    store = MemoryStore()

    async def opened() -> Bus:
        return MemoryBus(store)

    await assert_never_more_than_its_slots(opened)


@asynccontextmanager
async def _connections(url: str, namespace: str) -> AsyncIterator[Callable[[], Awaitable[Bus]]]:
    async with AsyncExitStack() as resources:

        async def opened() -> Bus:
            bus = await RedisBus.open(url, namespace, seconds=30.0)  # a busy machine's queue is not what is tested
            resources.push_async_callback(bus.aclose)
            return bus

        yield opened


async def test_a_source_on_a_server_never_lends_more_than_its_slots(shared_server: Server) -> None:
    async with _connections(shared_server.url, shared_server.namespace()) as opened:
        await assert_never_more_than_its_slots(opened)


def test_no_source_is_read_by_more_than_its_slots_with_the_real_machines() -> None:
    """As each pull begins the simulator counts who reads, at the source's own side."""
    crowd = Scenario(workers=JOINERS, holders=1, chunks=1, spread=0.0, slots=SLOTS, limits=Limits(patience=0.3))
    outcome = simulate(crowd, 1)
    assert not outcome.violations
    assert outcome.paths["peer"] >= SLOTS
