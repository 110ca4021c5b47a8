"""An arena lent by a real transport, and the other side that pulls from it.

Decides how the two sides of a case agree on one pull after the other: the joiner asks, the source offers
and revokes. Every pull is compared with the source afterwards, digest by digest. It must not know what the
pulls are timed for (``pulls.py``, ``lending.py``).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread

from benchmarks.gpu import models
from benchmarks.gpu.side import Task, Unable, needs_room
from coldstart import registry
from coldstart.arena import Arena
from coldstart.digest import ChunkDigester
from coldstart.errors import ColdstartError
from coldstart.landing import Landing
from coldstart.layout import Span
from coldstart.plan import Chunks
from coldstart.ports import Connecting, Grant, Preparing, Transport, TransportSettings

HOST = "127.0.0.1"
CONNECTIONS = 8
GRANT_SECONDS = 600.0


@asynccontextmanager
async def opened(task: Task) -> AsyncIterator[tuple[Transport, Arena, ChunkDigester]]:
    """This side's transport and arena, prepared as a cold start prepares them; random bytes at the source."""
    layout = task.layout
    needs_room(task, layout.nbytes)
    arena, digester = Arena(layout, task.device), ChunkDigester()
    if task.lends:
        models.fill(arena, seed=1)
    digester.prepare(task.device)
    transport = _transport(task)
    try:
        if isinstance(transport, Preparing):
            await transport.prepare(arena)
        yield transport, arena, digester
    finally:
        with anyio.move_on_after(10, shield=True):
            await transport.aclose()


def _transport(task: Task) -> Transport:
    name = task.order.options["transport"]
    gentle = float(task.order.options.get("lend_gbps", "0"))
    settings = TransportSettings(
        host=HOST, connections=CONNECTIONS, lend_bytes_per_second=gentle * 1e9, device=task.device
    )
    try:
        transport = registry.transport(name).open(settings)
    except ColdstartError as error:
        raise Unable(str(error)) from error
    if task.device.partition(":")[0] not in transport.traits.device_kinds:
        raise Unable(f"{name} does not serve {task.device} memory")
    return transport


async def lend(task: Task, transport: Transport, arena: Arena, digester: ChunkDigester) -> None:
    """Source: do what the joiner asks until it says that it is done."""
    peer, number = task.peer, 0
    while True:
        match await anyio.to_thread.run_sync(peer.hear):
            case b"offer":
                number += 1
                grant = Grant(transfer=f"bench-{number}", joiner="joiner", fence=number, seconds=GRANT_SECONDS)
                peer.say(await transport.offer(grant, arena))
            case b"revoke":
                await transport.revoke(f"bench-{number}")
                peer.say(b"")
            case b"digests":
                peer.say(b"".join(await anyio.to_thread.run_sync(_digests, arena, digester)))
            case b"end":
                return
            case other:
                raise AssertionError(f"not a request: {other!r}")


class Borrower:
    """The joiner's side of :func:`lend`."""

    def __init__(self, task: Task, transport: Transport, arena: Arena, digester: ChunkDigester) -> None:
        self._peer, self._transport, self._arena, self._digester = task.peer, transport, arena, digester
        self._whole = Span(0, arena.layout.nbytes)
        self._expected: Sequence[bytes] = ()
        self.connects: list[float] = []
        """Seconds of set-up before each pull, where the transport connects."""

    async def ask(self, request: bytes) -> bytes:
        """The source's answer."""
        self._peer.say(request)
        return await anyio.to_thread.run_sync(self._peer.hear)

    async def pull(self, *, verified: bool, checked: bool = True) -> tuple[float, float]:
        """Pull everything once, over old bytes that are wrong: monotonic seconds of beginning and end.

        A transport that connects in HANDSHAKE has done so before.

        Args:
            verified: digest every chunk as it lands, within that time.
            checked: make sure, outside of it, that the bytes are the source's.
        """
        if checked:
            models.poison(self._arena)
            self._expected = self._expected or await self._truth()
        ticket = await self.ask(b"offer")
        transport, reached = self._transport, time.monotonic()
        if isinstance(transport, Connecting):
            await transport.connect(ticket, self._arena)
            self.connects.append(time.monotonic() - reached)
        began = time.monotonic()
        digests = await (self._landing(ticket) if verified else self._only(ticket))
        ended = time.monotonic()
        if isinstance(transport, Connecting):
            await transport.disconnect(ticket)
        await self.ask(b"revoke")
        if checked:
            found = digests or await anyio.to_thread.run_sync(_digests, self._arena, self._digester)
            if list(found) != list(self._expected):
                raise RuntimeError("what was pulled is not what the source holds")
        return began, ended

    async def _truth(self) -> Sequence[bytes]:
        joined = await self.ask(b"digests")
        return [joined[at : at + 16] for at in range(0, len(joined), 16)]

    async def _only(self, ticket: bytes) -> Sequence[bytes]:
        await self._transport.pull(ticket, [self._whole], self._arena, lambda span: None)
        return ()

    async def _landing(self, ticket: bytes) -> Sequence[bytes]:
        count = self._arena.layout.chunks
        digests: dict[int, bytes] = {}

        async def on_chunk(chunk: int, digest: bytes) -> None:
            digests[chunk] = digest

        landing = Landing(self._arena, self._digester, Chunks.first(count), lambda nbytes: None, on_chunk)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(landing.verify)
            await self._transport.pull(ticket, [self._whole], self._arena, landing.landed)
            await landing.settle()
        return [digests[chunk] for chunk in range(count)]


def _digests(arena: Arena, digester: ChunkDigester) -> Sequence[bytes]:
    return [digester.digest(arena, arena.layout.chunk(chunk)) for chunk in range(arena.layout.chunks)]
