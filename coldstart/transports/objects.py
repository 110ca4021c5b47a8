"""The storage transport for a checkpoint in an object store: ranges of its objects, copied into the target.

Decides how many requests there are at one time, and what is asked for: what is missing, each byte once, neighbours in
one request. What the disk cache has is read from there, and what comes is kept there. A cancelled pull drops its
requests with their connections. It must not know torch, nor any library of a store (``shelves/bucket.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, aclosing
from functools import partial
from pathlib import Path
from typing import Final

import anyio

from coldstart.layout import Span
from coldstart.ports import Landed, Memory
from coldstart.shelves.bucket import Bucket
from coldstart.shelves.cache import CachedFile, DiskCache
from coldstart.shelves.objects import Prefix
from coldstart.transports.arriving import Arriving
from coldstart.transports.casting import cast
from coldstart.transports.placement import Placement
from coldstart.transports.reads import READ_BYTES, Read, Request, joined, selected
from coldstart.transports.threads import in_thread
from coldstart.transports.unlent import Unlent, reads_for

PIECE_BYTES: Final = 1 << 20
"""Of a request, what lands at one time: whoever follows this worker, and its own clocks, must see that it goes on."""


class ObjectTransport(Unlent):
    """Reads a checkpoint that holds a layout, perhaps in other dtypes; see ``ports.Transport``."""

    def __init__(self, prefix: Prefix, placement: Placement) -> None:
        super().__init__()
        self._prefix, self._placement = prefix, placement

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        """Read ``spans``; the ticket is ignored.

        Raises:
            CheckpointError: an object is gone, changed since its header was read, or cannot be read.
        """
        reads = reads_for(spans, self._placement, into, landed, min(PIECE_BYTES, READ_BYTES))
        pull = _Pull(self._prefix, joined(reads, READ_BYTES), into, landed)
        await self._run(pull)


class _Pull:
    """The requests of one pull, made by a few tasks that walk through the objects in order, together."""

    def __init__(self, prefix: Prefix, requests: Iterable[Request], into: Memory, landed: Landed) -> None:
        self._prefix, self._into, self._landed = prefix, into, landed
        self._queue = deque(requests)
        self._scope = anyio.CancelScope()
        self._error: Exception | None = None

    async def run(self) -> None:
        if not self._queue:
            return
        bucket = await in_thread(self._prefix.connect)
        with ExitStack() as stack:
            stack.callback(bucket.close)
            cached = await self._cached(stack)

            async def work() -> None:
                try:
                    while self._queue:
                        request = self._queue.popleft()
                        await self._bring(request, cached.get(request.file), bucket)
                except Exception as error:
                    self.stop(error)

            with self._scope:
                async with anyio.create_task_group() as tasks:
                    for _ in range(min(self._prefix.settings.reads, len(self._queue))):
                        tasks.start_soon(work)
            if self._error is None:
                for file in cached.values():
                    await in_thread(file.keep)
        if self._error is not None:
            raise self._error

    def stop(self, error: Exception) -> None:
        """End all requests; the first error counts."""
        self._error = self._error or error
        self._scope.cancel()

    async def _bring(self, request: Request, file: CachedFile | None, bucket: Bucket) -> None:
        """One request: from the cache, or else from the store and then into the cache."""
        if file is not None and await self._is_cached(request, file):
            self._tell(request.reads)
            return
        stored, arriving = self._prefix.objects[request.file], Arriving(request)
        async with aclosing(bucket.stream(stored, request.offset, request.length, PIECE_BYTES)) as pieces:
            async for piece in pieces:
                begins = arriving.end
                at, whole = arriving.add(piece)
                if whole:
                    await in_thread(partial(self._copy, at, whole, arriving.take))
                    self._tell(whole)
                if file is not None:  # after it has landed: the disk may be slow
                    await in_thread(partial(file.write, begins, piece))

    async def _is_cached(self, request: Request, file: CachedFile) -> bool:
        """Whether it came from the cache; one that cannot be read costs itself, not the start."""
        if not file.has(request.offset, request.offset + request.length):
            return False
        try:
            await in_thread(partial(self._copy, request.offset, request.reads, file.read))
        except OSError:
            return False
        return True

    def _tell(self, reads: Iterable[Read]) -> None:
        for read in reads:
            self._landed(read.landed)

    async def _cached(self, stack: ExitStack) -> Mapping[Path, CachedFile]:
        """The disk cache's files for what is asked for, in use until ``stack`` ends; none if there is no cache."""
        settings = self._prefix.settings
        if settings.cache is None:
            return {}
        cache = DiskCache(settings.cache, settings.cache_bytes)
        wanted = {request.file: self._prefix.objects[request.file] for request in self._queue}
        home = self._prefix.url.home

        def take() -> Mapping[Path, CachedFile]:
            return {path: stack.enter_context(cache.using(home, stored)) for path, stored in wanted.items()}

        return await in_thread(take)

    def _copy(self, at: int, reads: Iterable[Read], fill: Callable[[int, memoryview], None]) -> None:
        """Have ``fill`` bring the bytes of the file from ``at`` on, for each part of the target in turn."""
        for read in reads:
            with self._into.writing(read.target) as views:
                if read.conversion is not None:
                    stored = memoryview(bytearray(read.length))
                    fill(at, stored)
                    cast(stored, read.conversion, read.skipped, selected(views, read))
                    at += read.length
                    continue
                for view in selected(views, read):
                    fill(at, view)
                    at += len(view)
