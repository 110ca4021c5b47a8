"""A link that can be cut, held, delayed, throttled, made deaf in one direction, or made to lie.

It stands between a worker and the store, or between a joiner and its source, in the loop of the
test. Each direction (``up`` towards the server, ``down`` back to the client) has faults of its own,
which take effect at once on all connections. It must not know what is said on them.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Self

import anyio

Address = Path | tuple[str, int]
"""A unix socket, or host and port."""

_READ_BYTES = 64 * 1024
_RATE_STEP = 0.02


class Way:
    """One direction.

    Args:
        delay: seconds that each piece of data is late; nothing overtakes.
        rate: bytes per second over all connections; 0: no limit.
        deaf: whatever is sent is lost, the end of a connection too; no error is seen.
        flip: one bit of the byte at this position of some connection is turned, once.
        trap: the first data with these bytes in it is held back, and all after it; ``trapped`` tells.
    """

    def __init__(self) -> None:
        self.delay = 0.0
        self.rate = 0.0
        self.deaf = False
        self.flip: int | None = None
        self.flipped = False
        self.trap = b""
        self.trapped = asyncio.Event()
        self.carried = 0
        self._open = asyncio.Event()
        self._open.set()
        self._free_at = 0.0

    def hold(self) -> None:
        """Keep back all data from now on; it is late, not lost."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    async def let_pass(self) -> None:
        """Release, and wait until what was held back first has gone on."""
        carried = self.carried
        self.release()
        while self.carried == carried:
            await asyncio.sleep(0.005)

    @property
    def step(self) -> int:
        """Bytes to read at a time."""
        return max(1, min(_READ_BYTES, int(self.rate * _RATE_STEP))) if self.rate else _READ_BYTES

    async def passed(self, data: bytes) -> None:
        """Wait until ``data`` may go on."""
        if self.trap and self.trap in data:
            self.trap = b""
            self.hold()
            self.trapped.set()
        await self._open.wait()

    async def paced(self, count: int) -> None:
        if self.rate:
            now = anyio.current_time()
            self._free_at = max(self._free_at, now) + count / self.rate
            await asyncio.sleep(self._free_at - now)

    def distorted(self, data: bytes, position: int) -> bytes:
        """``data``, which stands at ``position`` of its connection, as it arrives."""
        at = -1 if self.flip is None or self.flipped else self.flip - position
        if not 0 <= at < len(data):
            return data
        self.flipped = True
        return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


class Proxy:
    """Forwards connections; use :meth:`open`.

    ``upstream`` is asked for each new connection, so where they lead may change.
    """

    def __init__(self, upstream: Callable[[], Address]) -> None:
        self.up, self.down = Way(), Way()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._upstream = upstream
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @classmethod
    @asynccontextmanager
    async def open(cls, upstream: Callable[[], Address]) -> AsyncIterator[Self]:
        proxy = cls(upstream)
        proxy._server = await asyncio.start_server(proxy._accept, "127.0.0.1", 0)
        proxy.port = proxy._server.sockets[0].getsockname()[1]
        try:
            yield proxy
        finally:
            proxy.refuse()
            proxy.cut()
            await proxy._quiet()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def deaf(self, *, up: bool = False, down: bool = False) -> None:
        """What is lost from now on."""
        self.up.deaf, self.down.deaf = up, down

    def refuse(self) -> None:
        """Listen no more: new connections are refused."""
        if self._server is not None:
            self._server.close()

    def hang_up(self) -> None:
        """Close all connections in order, on both sides: what was forwarded arrives."""
        for writer in self._writers:
            writer.close()

    def cut(self) -> None:
        """Reset all connections, on both sides."""
        for writer in self._writers:
            sock = writer.get_extra_info("socket")
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()

    async def _quiet(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._forward(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        other: asyncio.StreamWriter | None = None
        try:
            other_reader, other = await self._connected()
            self._writers.add(other)
            await _both(self._pump(reader, other, self.up), self._pump(other_reader, writer, self.down))
        except (OSError, asyncio.CancelledError):
            return
        finally:
            for each in (writer, other):
                if each is not None:
                    self._writers.discard(each)
                    each.transport.abort()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = self._upstream()
        if isinstance(address, Path):
            return await asyncio.open_unix_connection(str(address))
        return await asyncio.open_connection(*address)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        """Carry one direction of one connection to its end; a late piece does not delay the reading of the next."""
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)

        async def read() -> None:
            while data := await reader.read(way.step):
                await late.put((anyio.current_time() + way.delay, data))
            await late.put((anyio.current_time() + way.delay, b""))

        async def write() -> None:
            position = 0
            while True:
                due, data = await late.get()
                await asyncio.sleep(due - anyio.current_time())
                await way.passed(data)
                await way.paced(len(data))
                if way.deaf:
                    if not data:
                        await asyncio.Event().wait()
                    continue
                if not data:
                    with suppress(OSError):
                        writer.write_eof()
                    return
                writer.write(way.distorted(data, position))
                position += len(data)
                way.carried += len(data)
                await writer.drain()

        await _both(read(), write())


async def _both(one: Awaitable[None], other: Awaitable[None]) -> None:
    """Until both have ended; an error of one ends the other."""
    tasks = [asyncio.ensure_future(one), asyncio.ensure_future(other)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
