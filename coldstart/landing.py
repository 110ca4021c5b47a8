"""From bytes that land to chunks that are verified.

Decides when a chunk is complete (every byte of it has landed) and has its digest computed from
the target memory while later ones still arrive: a few chunks at a time, each in a thread, or, where the
digester wants it so, all that are waiting in one call. It must not know where the bytes come from nor what
the digest should be; its user compares and reports.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import anyio
import anyio.to_thread

from coldstart.layout import Layout, Span, merged
from coldstart.plan import Chunks
from coldstart.ports import BatchDigester, Digester, Memory

WORKERS = max(2, min(8, (os.cpu_count() or 2) // 2))
"""Digests computed at one time; one core makes 2 to 3 GB/s of them."""

BATCH_WORKERS = 2
"""Calls for many chunks at one time: while one waits for the device, the other one prepares the next."""

TELL_SECONDS = 0.05
"""After the first, landed bytes are told of at most so often: each report is a step of a machine."""


class Landing:
    """Follows one pull or read of ``chunks`` into ``memory``.

    Args:
        on_bytes: told how many more bytes have landed, on the loop's thread; at once of the first.
        on_chunk: told of every completed chunk and its digest; awaited.
    """

    def __init__(
        self,
        memory: Memory,
        digester: Digester,
        chunks: Chunks,
        on_bytes: Callable[[int], None],
        on_chunk: Callable[[int, bytes], Awaitable[None]],
    ) -> None:
        self._memory = memory
        self._layout: Layout = memory.layout
        self._digester = digester
        self._waiting: dict[int, list[Span]] = {chunk: [] for chunk in chunks}
        self._on_bytes = on_bytes
        self._on_chunk = on_chunk
        self._loop = asyncio.get_running_loop()
        self._settled = False
        self._untold, self._told = 0, -math.inf
        self._at_once = digester.at_once(memory) if isinstance(digester, BatchDigester) else 1
        self._workers = WORKERS if self._at_once == 1 else BATCH_WORKERS
        self._threads = anyio.CapacityLimiter(self._workers)
        self._send, self._receive = anyio.create_memory_object_stream[int](math.inf)

    def expect(self, chunks: Chunks) -> None:
        """Follow ``chunks``, too, of which nothing has landed yet."""
        self._waiting.update({chunk: [] for chunk in chunks})

    def landed(self, span: Span) -> None:
        """``span`` is in the target memory; may be called from any thread, in any order.

        Calls that come after :meth:`settle` are a late writer's, and change nothing.
        """
        self._loop.call_soon_threadsafe(self._take, span)

    async def settle(self) -> None:
        """No more will land: returns when the digests of all completed chunks are reported.

        Waits one turn of the loop first, for ranges that other threads have just reported.
        """
        await asyncio.sleep(0)
        self._settled = True
        self._tell()
        self._send.close()

    async def verify(self) -> None:
        """Digest completed chunks until :meth:`settle` was called and nothing is left."""
        with self._send, self._receive:
            async with anyio.create_task_group() as tasks:
                for _ in range(self._workers):
                    tasks.start_soon(self._digest)

    async def _digest(self) -> None:
        with self._receive.clone() as chunks:
            async for chunk in chunks:
                batch = [chunk]
                with suppress(anyio.WouldBlock, anyio.EndOfStream):
                    while len(batch) < self._at_once:
                        batch.append(chunks.receive_nowait())
                digests = await anyio.to_thread.run_sync(self._digests, batch, limiter=self._threads)
                for done, digest in zip(batch, digests, strict=True):
                    await self._on_chunk(done, digest)

    def _digests(self, batch: Sequence[int]) -> Sequence[bytes]:
        spans = [self._layout.chunk(chunk) for chunk in batch]
        if isinstance(self._digester, BatchDigester):
            return self._digester.digests(self._memory, spans)
        return [self._digester.digest(self._memory, span) for span in spans]

    def _take(self, span: Span) -> None:
        if self._settled:
            return
        self._untold += span.length
        if self._loop.time() - self._told >= TELL_SECONDS:
            self._tell()
        size = self._layout.chunk_bytes
        for chunk in range(span.offset // size, -(-span.end // size)):
            parts = self._waiting.get(chunk)
            if parts is None:
                continue
            whole = self._layout.chunk(chunk)
            low, high = max(span.offset, whole.offset), min(span.end, whole.end)
            parts[:] = merged([*parts, Span(low, high - low)])
            if parts == [whole]:
                del self._waiting[chunk]
                self._complete(chunk)

    def _tell(self) -> None:
        if self._untold:
            nbytes, self._untold, self._told = self._untold, 0, self._loop.time()
            self._on_bytes(nbytes)

    def _complete(self, chunk: int) -> None:
        try:
            self._send.send_nowait(chunk)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            return
