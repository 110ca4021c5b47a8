"""What all parts of the bus contract share: adverts and claims with nothing against them, and buses on one store."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import msgspec
import pytest

from coldstart.ports import Advert, Bus, Claim, ClaimOutcome, Cursor, Granted

SHARD = "5ac1" * 8
LAYOUT = "1a40" * 8
PATIENCE_SECONDS = 10.0
AHEAD = "9999999999999-0"
"""An id that no store has given out."""
SHORT_SECONDS = 0.15
"""A lease that is meant to end; long enough to be seen alive on a busy machine."""

Connect = Callable[[], Awaitable[Bus]]
"""Opens one more bus on the same store."""


def advert(worker: str, **changes: object) -> Advert:
    """A complete source with two free slots."""
    usual = Advert(
        worker=worker,
        inbox=f"{worker}.in",
        incarnation="1",
        generation=0,
        layout=LAYOUT,
        slots=2,
        have=8,
        total=8,
        transports=("tcp",),
        host="127.0.0.1",
        device="cpu",
    )
    return msgspec.structs.replace(usual, **changes)


_transfers = itertools.count(1)


def claim(worker: str = "joiner", **changes: object) -> Claim:
    """A claim that nothing stands against, with a transfer id of its own."""
    usual = Claim(
        shard=SHARD,
        layout=LAYOUT,
        worker=worker,
        transfer=f"t{next(_transfers)}",
        hello=b"hello",
        exclude=(worker,),
        transports=("tcp",),
    )
    return msgspec.structs.replace(usual, **changes)


def granted(outcome: ClaimOutcome) -> Granted:
    """The outcome, which must be a grant."""
    assert isinstance(outcome, Granted), outcome
    return outcome


class BusSuite:
    """A part of the contract, on whatever :meth:`open_bus` opens."""

    pytestmark = pytest.mark.anyio

    def open_bus(self) -> AbstractAsyncContextManager[Connect]:
        """An empty store, and the function that opens buses on it; the suite closes the buses."""
        raise NotImplementedError

    async def pass_time(self, seconds: float) -> None:
        """Let ``seconds`` pass on the store's clock; a fake clock is simply moved."""
        await anyio.sleep(seconds)

    @asynccontextmanager
    async def buses(self, count: int = 1) -> AsyncIterator[tuple[Bus, ...]]:
        """``count`` buses on one empty store."""
        async with self.open_bus() as connect:
            opened: list[Bus] = []
            try:
                while len(opened) < count:
                    opened.append(await connect())
                yield tuple(opened)
            finally:
                for bus in opened:
                    await bus.aclose()

    async def eventually(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Let time pass in small steps until ``condition`` holds."""
        with anyio.fail_after(PATIENCE_SECONDS):
            while not await condition():
                await self.pass_time(0.03)

    async def caught_up(self, bus: Bus) -> Cursor:
        """A cursor after everything that has happened so far."""
        cursor = Cursor()
        while True:
            heard = await bus.listen(SHARD, "in", cursor, 0)
            if not (heard.letters or heard.fleet_changed):
                return heard.cursor
            cursor = heard.cursor
