"""Calls to the store that are answered at once: scripts, on a few connections that take turns.

Decides which connection carries a call, how long it may take, and to which node of a cluster it goes.
It must not know what the scripts do. ``redis.py`` makes the calls; ``ear.py`` is for what waits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain

import anyio

from coldstart.bus.connections import REDIRECTS, Link, Node, Refused, Routes, Server, UnknownScript, Within, Word
from coldstart.bus.scripts import Script
from coldstart.errors import BusError

CONNECTIONS = 8
"""Calls in flight at once; more wait their turn, inside their own deadline."""

Call = tuple[Script, str, Sequence[Word]]
"""A script, its key, and its other words."""


class Calls:
    """One worker's calls.

    Args:
        seconds: deadline of one call, connecting included.
    """

    def __init__(self, server: Server, routes: Routes, seconds: float) -> None:
        self._server, self._routes, self._seconds = server, routes, seconds
        self._idle: dict[Node, list[Link]] = defaultdict(list)
        self._turns = anyio.Semaphore(CONNECTIONS, fast_acquire=True)
        self._closed = False

    async def run(self, script: Script, key: str, *words: Word) -> object:
        """The reply of a script; raises BusError."""
        with self.deadline(script.name, self._seconds):
            async with self._turns:
                for attempt in range(REDIRECTS + 1):
                    with self._routes.following(key, last=attempt == REDIRECTS):
                        return (await self._evaluate(self._routes.node(key), (script, key, words)))[0]
        raise AssertionError("the last attempt returns or raises")

    async def run_both(self, first: Call, second: Call) -> object:
        """The reply of the first of two scripts that are sent in one go; only one server takes both."""
        script, key, words = first
        with self.deadline(script.name, self._seconds):
            try:
                async with self._turns:
                    with self._routes.following(key, last=True):
                        return (await self._evaluate(self._routes.node(key), first, second))[0]
            except Refused:
                if not self._routes.clustered:
                    raise
        # A cluster has redirected one of them: each goes its own way.
        await self.run(*second[:2], *second[2])
        return await self.run(script, key, *words)

    @asynccontextmanager
    async def link(self, operation: str) -> AsyncIterator[Link]:
        """A connection of its own, for anything else that is answered at once."""
        with self.deadline(operation, self._seconds):
            link = self._server.link()
            try:
                await link.ready()
                yield link
            finally:
                await link.close()

    async def warm(self, count: int) -> None:
        """Connect ``count`` connections now; raises BusError."""
        links = [self._server.link() for _ in range(count)]
        self._idle[None].extend(links)  # a link that fails to connect is as good as new, and closed with the rest
        with self.deadline("connecting", self._seconds):
            for link in links:
                await link.ready()

    async def aclose(self) -> None:
        self._closed = True
        with anyio.CancelScope(shield=True):
            for link in chain.from_iterable(self._idle.values()):
                await link.close()
            self._idle.clear()

    def deadline(self, operation: str, seconds: float) -> Within:
        """Whatever goes wrong inside, or takes longer than ``seconds``, is a BusError."""
        if self._closed:
            raise BusError(f"{operation} on a bus that was closed")
        return self._server.within(operation, seconds)

    async def _evaluate(self, node: Node, *calls: Call) -> list[object]:
        """The replies of scripts sent in one go on the next free connection."""
        idle = self._idle[node]
        link = idle.pop() if idle else self._server.link(node)
        try:
            await link.ready()
            return await _evaluate(link, calls)
        finally:
            if self._closed:
                await link.close()
            else:
                idle.append(link)


async def _evaluate(link: Link, calls: Sequence[Call]) -> list[object]:
    """The replies of scripts sent in one go. Raises the first refusal, when all replies are here."""
    await link.send(*(("EVALSHA", script.sha, 1, key, *words) for script, key, words in calls))
    replies: list[object] = []
    refused: list[Refused] = []
    unknown: list[int] = []
    for number in range(len(calls)):
        try:
            replies.append(await link.receive())
        except UnknownScript:
            replies.append(None)
            unknown.append(number)
        except Refused as error:
            replies.append(None)
            refused.append(error)
    if refused:
        raise refused[0]
    for number in unknown:
        # The server has run nothing of it, so this is no retry; EVAL also teaches it the script.
        script, key, words = calls[number]
        replies[number] = await link.call("EVAL", script.text, 1, key, *words)
    return replies
