"""A connection as the event loop sees it: what a caller waits for, and what it does when it is cancelled.

Decides that waiting ends only when nothing is written for it any more, also for callers that are cancelled, by a
scope or by asyncio. What happens in the thread is in ``connection.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import anyio

from coldstart_transfer_engine.connection import Connection
from coldstart_transfer_engine.joiner import Pull

GIVE_UP_SECONDS: Final = 60.0
"""A pull that the library never lets go is left after this; coldstart has given the target's memory up long before."""

Make = Callable[[Callable[[], None]], Connection]
"""Makes a connection that tells, from its thread, whenever something has ended."""


class Awaited:
    """A connection, from its beginning on, and the news of it."""

    def __init__(self, make: Make) -> None:
        self._loop = asyncio.get_running_loop()
        self._news = anyio.Event()
        self.connection = make(self._told)
        self.connection.start()

    def _told(self) -> None:
        with suppress(RuntimeError):  # the loop may be gone before a connection that was left
            self._loop.call_soon_threadsafe(self._renew)

    def _renew(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def _until(self, happened: Callable[[], bool]) -> None:
        while not happened() and not self.connection.over:
            await self._news.wait()

    async def made(self) -> None:
        """Wait until everything is set up, or it is over."""
        await self._kept(lambda: self.connection.made)

    async def pulled(self, pull: Pull) -> None:
        """Wait until ``pull`` is done, or it is over."""
        await self._kept(lambda: pull.done)

    async def end(self) -> None:
        """End it; returns when the source knows that nothing is read any more."""
        self.connection.stop()
        await self._until(lambda: False)

    async def _kept(self, happened: Callable[[], bool]) -> None:
        async def wait() -> None:
            try:
                await self._until(happened)
            finally:
                if not happened():
                    self.connection.stop()
                    if self.connection.touching:
                        with anyio.move_on_after(GIVE_UP_SECONDS, shield=True):
                            await self._until(lambda: False)

        async with anyio.create_task_group() as tasks:  # a task of its own, which no native cancellation tears out
            tasks.start_soon(wait)
