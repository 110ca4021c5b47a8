"""Measures one pull: how many bytes landed, and in what time.

Decides when a probe is over. The head of a pull is a probe where its path's rate is not known: until
:data:`PROBE_BYTES` have landed, or :data:`PROBE_SECONDS` have passed since the first did, no digest is computed, so
that nothing but the link is measured. That is also the most by which a probe delays SERVE: the digests of
what landed meanwhile are made up for while the rest arrives, or take about as long as the bytes took.
It must not know where bytes come from; ``joining.py`` puts it between transport and digests.
"""

from __future__ import annotations

import asyncio
import threading

import anyio

from coldstart.layout import Span
from coldstart.links.rates import Moved
from coldstart.ports import Landed

PROBE_BYTES = 256 << 20
PROBE_SECONDS = 0.25
"""A probe of a slow link ends here: what it delays a start by is at most this."""


class Meter:
    """Of one pull, made when it begins.

    Args:
        probing: whether its head is a probe.
    """

    def __init__(self, *, probing: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._began = self._first = self._last = self._loop.time()
        self._nbytes = self._first_bytes = 0
        self._moving, self._enough = anyio.Event(), anyio.Event()
        self._probing = probing
        self.probe = Moved()
        """What the probe has seen, once it is over."""
        self.doubted = False
        """Whether some of what landed was wrong: then nobody knows what really came over the link."""

    def counting(self, landed: Landed) -> Landed:
        """``landed``, and each span counted first; any thread may call it."""

        def count(span: Span) -> None:
            self._count(span.length)
            landed(span)

        return count

    async def probed(self) -> None:
        """Wait until the probe is over; returns at once where there is none."""
        if not self._probing:
            return
        await self._moving.wait()
        with anyio.move_on_after(PROBE_SECONDS):
            await self._enough.wait()
        self.probe = self.moved

    def end(self) -> None:
        """No more will land."""
        self._moving.set()
        self._enough.set()

    @property
    def moved(self) -> Moved:
        """What has landed since the first span did; of a pull that tells of most of it at once, all since it began."""
        with self._lock:
            after = self._nbytes - self._first_bytes
            if 2 * after >= self._nbytes and self._last > self._first:
                return Moved(after, self._last - self._first)
            return Moved(self._nbytes, self._last - self._began)

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self._last = self._loop.time()
            first = not self._nbytes
            if first:
                self._first, self._first_bytes = self._last, nbytes
            before, self._nbytes = self._nbytes, self._nbytes + nbytes
            enough = before < PROBE_BYTES <= self._nbytes
        if self._probing and first:
            self._loop.call_soon_threadsafe(self._moving.set)
        if self._probing and enough:
            self._loop.call_soon_threadsafe(self._enough.set)
