"""Who computes the digests of chunks that have landed, and in how many threads.

Decides between the two ways that digesters want it: a call for each chunk, several at one time, where each takes
long (a CPU); or few calls, each for all that is waiting, where a call takes as long as a hop between threads (a
device). Then a thread of its own takes chunks from those who landed them, without the event loop: a hop over the
loop and a pool of threads added 0.4 ms after the last byte of a pull that takes 41 (measured, two H200s). It must
not know when a chunk is complete (``landing.py``), nor what its digest should be.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

import anyio
import anyio.to_thread

WORKERS = max(2, min(8, (os.cpu_count() or 2) // 2))
"""Digests computed at one time; one core makes 2 to 3 GB/s of them."""

Digests = Callable[[Sequence[int]], Sequence[bytes]]
"""The digests of chunks, in their order. Blocks."""

OnChunk = Callable[[int, bytes], Awaitable[None]]


class Hashing(Protocol):
    """Computes digests and tells of them on the loop's thread."""

    def add(self, chunks: Sequence[int]) -> None:
        """Chunks that are complete; from any thread, not after :meth:`close`."""
        ...

    def close(self) -> None:
        """There are no more. On the loop's thread; idempotent."""
        ...

    async def run(self) -> None:
        """Compute and tell until :meth:`close` was called and nothing is left; raises what a digester raises."""
        ...


class OneByOne:
    """A call for each chunk, in threads of a pool."""

    def __init__(self, digests: Digests, on_chunk: OnChunk) -> None:
        self._digests, self._on_chunk = digests, on_chunk
        self._loop = asyncio.get_running_loop()
        self._threads = anyio.CapacityLimiter(WORKERS)
        self._send, self._receive = anyio.create_memory_object_stream[int](math.inf)

    def add(self, chunks: Sequence[int]) -> None:
        self._loop.call_soon_threadsafe(self._queue, chunks)

    def close(self) -> None:
        self._send.close()

    async def run(self) -> None:
        with self._send, self._receive:
            async with anyio.create_task_group() as tasks:
                for _ in range(WORKERS):
                    tasks.start_soon(self._work)

    def _queue(self, chunks: Sequence[int]) -> None:
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            for chunk in chunks:
                self._send.send_nowait(chunk)

    async def _work(self) -> None:
        with self._receive.clone() as chunks:
            async for chunk in chunks:
                (digest,) = await anyio.to_thread.run_sync(self._digests, [chunk], limiter=self._threads)
                await self._on_chunk(chunk, digest)


class InBatches:
    """A call for all that are waiting, ``at_once`` at most, in a thread of its own, which begins with the first chunk.

    More than one would only wait for each other: nearly all of a call's time is the interpreter's.
    """

    def __init__(self, digests: Digests, on_chunk: OnChunk, at_once: int) -> None:
        self._digests, self._on_chunk, self._at_once = digests, on_chunk, at_once
        self._loop = asyncio.get_running_loop()
        self._waiting: SimpleQueue[int | None] = SimpleQueue()
        self._begun = anyio.Event()
        self._send, self._receive = anyio.create_memory_object_stream[tuple[int, bytes]](math.inf)

    def add(self, chunks: Sequence[int]) -> None:
        for chunk in chunks:
            self._waiting.put(chunk)
        if chunks and not self._begun.is_set():
            self._loop.call_soon_threadsafe(self._begun.set)

    def close(self) -> None:
        self._waiting.put(None)
        self._begun.set()

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._tell)
            with self._send:
                await self._begun.wait()
                await anyio.to_thread.run_sync(self._work, limiter=anyio.CapacityLimiter(1))

    def _work(self) -> None:
        while batch := self._next():
            digests = self._digests(batch)
            self._loop.call_soon_threadsafe(self._pass_on, batch, digests)

    def _next(self) -> list[int]:
        """What is waiting, or what comes next; empty when there is no more."""
        batch: list[int] = []
        with suppress(Empty):
            while len(batch) < self._at_once:
                chunk = self._waiting.get(block=not batch)
                if chunk is None:
                    self._waiting.put(None)  # for the next look
                    break
                batch.append(chunk)
        return batch

    def _pass_on(self, batch: Sequence[int], digests: Sequence[bytes]) -> None:
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            for told in zip(batch, digests, strict=True):
                self._send.send_nowait(told)

    async def _tell(self) -> None:
        try:
            with self._receive:
                async for chunk, digest in self._receive:
                    await self._on_chunk(chunk, digest)
        finally:
            self.close()  # when this is cancelled, the thread ends, too
