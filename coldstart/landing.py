"""From bytes that land to chunks that are verified.

Decides when a chunk is complete (every byte of it has landed) and has its digest computed from
the target memory while later ones still arrive; in which threads is in ``hashing.py``. It must not know where the
bytes come from nor what the digest should be; its user compares and reports.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial

from coldstart.hashing import Hashing, InBatches, OnChunk, OneByOne
from coldstart.layout import Layout, Span, merged
from coldstart.plan import Chunks
from coldstart.ports import BatchDigester, Digester, Memory

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
        on_chunk: OnChunk,
    ) -> None:
        self._layout: Layout = memory.layout
        self._waiting = set(chunks)
        self._parts: dict[int, tuple[Span, ...]] = {}
        self._on_bytes = on_bytes
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._settled = False
        self._untold, self._told = 0, -math.inf
        at_once = digester.at_once(memory) if isinstance(digester, BatchDigester) else 1
        digests = partial(_digests, memory, digester)  # nothing that refers to us: memory would outlive its last user
        self._hashing: Hashing = OneByOne(digests, on_chunk) if at_once == 1 else InBatches(digests, on_chunk, at_once)

    def expect(self, chunks: Chunks) -> None:
        """Follow ``chunks``, too, of which nothing has landed yet."""
        self._waiting.update({chunk: [] for chunk in chunks})

    def landed(self, span: Span) -> None:
        """``span`` is in the target memory; may be called from any thread, in any order.

        Calls that come after :meth:`settle` are a late writer's, and change nothing.
        """
        with self._lock:
            if self._settled:
                return
            self._loop.call_soon_threadsafe(self._count, span.length)
            self._hashing.add(self._completed(span))

    async def settle(self) -> None:
        """No more will land: what has landed is told of, and :meth:`verify` ends with the last digest.

        Waits one turn of the loop first, for what other threads have just reported.
        """
        await asyncio.sleep(0)
        with self._lock:
            self._settled = True
        self._tell()
        self._hashing.close()

    async def verify(self) -> None:
        """Digest completed chunks until :meth:`settle` was called and nothing is left.

        Raises:
            Exception: whatever a digester raises.
        """
        await self._hashing.run()

    def _completed(self, span: Span) -> Sequence[int]:
        """The chunks that ``span`` has completed."""
        size, found = self._layout.chunk_bytes, list[int]()
        for chunk in range(span.offset // size, -(-span.end // size)):
            if chunk in self._waiting and self._is_whole(chunk, span):
                self._waiting.remove(chunk)
                self._parts.pop(chunk, None)
                found.append(chunk)
        return found

    def _is_whole(self, chunk: int, span: Span) -> bool:
        whole = self._layout.chunk(chunk)
        low, high = max(span.offset, whole.offset), min(span.end, whole.end)
        if high - low == whole.length:
            return True
        self._parts[chunk] = merged([*self._parts.get(chunk, ()), Span(low, high - low)])
        return self._parts[chunk] == (whole,)

    def _count(self, nbytes: int) -> None:
        self._untold += nbytes
        if not self._settled and self._loop.time() - self._told >= TELL_SECONDS:
            self._tell()

    def _tell(self) -> None:
        if self._untold:
            nbytes, self._untold, self._told = self._untold, 0, self._loop.time()
            self._on_bytes(nbytes)


def _digests(memory: Memory, digester: Digester, batch: Sequence[int]) -> Sequence[bytes]:
    spans = [memory.layout.chunk(chunk) for chunk in batch]
    if isinstance(digester, BatchDigester):
        return digester.digests(memory, spans)
    return [digester.digest(memory, span) for span in spans]
