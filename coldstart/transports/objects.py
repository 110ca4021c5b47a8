"""The storage transport for a checkpoint in an object store: ranges of its objects, copied into the target.

Decides how many requests there are at one time, and what is asked for: what is missing, each byte once, neighbours in
one request. What the disk cache has is read from there, and what comes is kept there. A cancelled pull drops its
requests with their connections. It must not know torch, nor any library of a store (``shelves/bucket.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import numpy as np

from coldstart.errors import TransportError
from coldstart.layout import Span
from coldstart.ports import Grant, Landed, Memory, Traits
from coldstart.shelves.cache import CachedFile, DiskCache
from coldstart.shelves.objects import Prefix
from coldstart.transports.placement import Placement
from coldstart.transports.reads import READ_BYTES, Read, Request, joined, planned, selected
from coldstart.transports.threads import in_thread

TRAITS: Final = Traits(one_sided=True, needs_peer=False, abortable=True, device_kinds=("cpu", "cuda"), link="storage")


class ObjectTransport:
    """Reads a checkpoint that holds a layout byte for byte; see ``ports.Transport``."""

    name: Final = "storage"
    traits: Final = TRAITS

    def __init__(self, prefix: Prefix, placement: Placement) -> None:
        self._prefix, self._placement = prefix, placement
        self._pulls: set[_Pull] = set()

    async def offer(self, grant: Grant, memory: Memory) -> bytes:
        raise TransportError("storage has no source side", reason="unsupported", advice="offer another transport")

    async def revoke(self, transfer: str) -> None:
        """Nothing was offered."""

    def reading(self, transfer: str) -> bool:
        """Nobody reads what was not offered."""
        return False

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        """Read ``spans``; the ticket is ignored.

        Raises:
            CheckpointError: an object is gone, changed since its header was read, or cannot be read.
        """
        reads: list[Read] = []
        for span in spans:
            found = planned(into.layout.pieces(span), span, self._placement, READ_BYTES)
            reads.extend(found)
            if not found and span.length:
                landed(span)  # padding only
        pull = _Pull(self._prefix, joined(reads, READ_BYTES), into, landed)
        self._pulls.add(pull)
        try:
            await pull.run()
        finally:
            self._pulls.discard(pull)

    async def aclose(self) -> None:
        for pull in self._pulls:
            pull.stop(TransportError("storage transport was closed during the pull", reason="closed"))


class _Pull:
    """The requests of one pull, made by a few tasks that walk through the objects in order, together."""

    def __init__(self, prefix: Prefix, requests: Iterable[Request], into: Memory, landed: Landed) -> None:
        self._prefix, self._into, self._landed = prefix, into, landed
        self._queue = deque(requests)
        self._scope = anyio.CancelScope()
        self._error: Exception | None = None

    async def run(self) -> None:
        bucket = self._prefix.connect()
        async with AsyncExitStack() as stack:
            stack.callback(bucket.close)
            cached = await self._cached(stack)

            async def work() -> None:
                try:
                    while self._queue:
                        request = self._queue.popleft()
                        file = cached.get(request.file)
                        end = request.offset + request.length
                        data: memoryview | None = None
                        if file is None or not file.has(request.offset, end):
                            stored = self._prefix.objects[request.file]
                            data = await bucket.fetch(stored, request.offset, request.length)
                        await in_thread(partial(self._copy, request, file, data))
                        for read in request.reads:
                            self._landed(read.landed)
                        if file is not None and data is not None:  # after it has landed: the disk may be slow
                            await in_thread(partial(file.write, request.offset, data))
                        del data
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

    async def _cached(self, stack: AsyncExitStack) -> Mapping[Path, CachedFile]:
        """The disk cache's files for what is asked for; none if there is no cache."""
        settings, held = self._prefix.settings, ExitStack()
        if settings.cache is None:
            return {}
        stack.callback(held.close)
        cache = DiskCache(settings.cache, settings.cache_bytes)
        wanted = {request.file: self._prefix.objects[request.file] for request in self._queue}
        home = self._prefix.url.home

        def take() -> Mapping[Path, CachedFile]:
            return {path: held.enter_context(cache.using(home, stored)) for path, stored in wanted.items()}

        return await in_thread(take)

    def _copy(self, request: Request, file: CachedFile | None, data: memoryview | None) -> None:
        """Into the target, from ``data`` or else from the cache."""
        at = 0
        for read in request.reads:
            with self._into.writing(read.target) as views:
                for view in selected(views, read):
                    if data is not None:
                        # numpy lets other threads run meanwhile, which the assignment of views does not.
                        np.copyto(np.frombuffer(view, np.uint8), np.frombuffer(data[at : at + len(view)], np.uint8))
                    elif file is not None:
                        file.read(request.offset + at, view)
                    at += len(view)
