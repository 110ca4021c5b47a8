"""A source's look at its own weights: where they lie, who wrote to them, and whether the bytes are still the truth.

Decides in what order that is found out. A look at the module comes first: it costs no byte, and memory that the host
has given up must not be read. Then the chunks of tensors that were written to are digested, then those asked for.
A count of writes is only a hint, in one direction: torch keeps none for tensors made in inference mode, and none of
writes through ``.data``, numpy or kernels of one's own; those are found when a chunk's turn to be digested comes.
While weights still arrive, memory is replaced and written to for good reason: then there are only digests.

It must not know torch nor who reads the weights; when to look is ``source.py``'s matter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread

from coldstart.events import (
    Event,
    Scrubbed,
    ScrubFailed,
    WeightsDamaged,
    WeightsMoved,
    WeightsProven,
)
from coldstart.glance import Glance, Watch
from coldstart.plan import Chunks
from coldstart.ports import BatchDigester, Digester, Memory
from coldstart.truths import Truths

_NEVER = 1 << 62
"""A generation that no weights will have."""

NAMED = 3
"""Tensors of a wrong chunk that are named."""

T = TypeVar("T")


class Inspector:
    """Looks at one worker's weights.

    Args:
        memory: the verified weights.
        truths: knows the digests they were verified against; ``digester`` computes them anew.
        watch: looks at the module they belong to; None where there is none.
    """

    def __init__(self, memory: Memory, truths: Truths, digester: Digester, watch: Watch | None = None) -> None:
        self._memory, self._truths, self._digester, self._watch = memory, truths, digester, watch
        self.at_once = digester.at_once(memory) if isinstance(digester, BatchDigester) else 1
        """Chunks that one call digests at most."""
        self._generation, self._whole = 0, False
        self._working, self._ended = 0, anyio.Event()
        self._cost = 0.0

    @property
    def reading(self) -> bool:
        """Whether the weights are being read here now."""
        return self._working > 0

    def advertised(self, generation: int, *, whole: bool) -> None:
        """As of now ``generation`` is lent or withheld, the ``whole`` of it or what has arrived.

        What was asked for of an older one need not go on: the host may be about to free the memory.
        """
        self._generation, self._whole = max(self._generation, generation), self._whole or whole

    async def leave(self) -> None:
        """Begin nothing more, and return when the memory is not read here any more: the host may free it."""
        self._generation = _NEVER
        while self._working:
            await self._ended.wait()

    async def inspect(self, generation: int, chunks: Chunks | None) -> Event:
        """Digest ``chunks``, or everything; a digest that cannot be had proves nothing."""
        wanted = range(self._memory.layout.chunks) if chunks is None else chunks
        return await self._wrong(generation, wanted) or WeightsProven(generation)

    async def before_offer(self, generation: int) -> Event | None:
        """What is wrong with the weights, as far as a look tells; None: nothing."""
        return await self._wrong(generation, ())

    async def scrub(self, generation: int, chunks: Chunks) -> Event:
        """One turn: a look, and ``chunks``."""
        spent = self._cost
        try:
            wrong = await self._wrong(generation, chunks)
        except Exception as error:  # a digester may raise anything
            return ScrubFailed(generation, f"{type(error).__name__}: {error}"[:512])
        return wrong or Scrubbed(generation, chunks, self._cost - spent)

    async def _wrong(self, generation: int, chunks: Iterable[int]) -> WeightsDamaged | WeightsMoved | None:
        """The first thing that is not as it was verified; None if there is none, or nobody needs to know any more."""
        if generation < self._generation:
            return None
        self._working += 1
        watch = self._watch if self._whole else None
        try:
            glance = Glance() if watch is None else await self._in_thread(watch.look)
            if glance.moved:
                return WeightsMoved(generation, glance.moved)
            wanted = sorted({*chunks, *glance.chunks})
            for first in range(0, len(wanted), self.at_once):
                if generation < self._generation:
                    return None
                some = wanted[first : first + self.at_once]
                for chunk, digest in zip(some, await self._in_thread(partial(self._digests, some)), strict=True):
                    if self._truths.expected(chunk) != digest:
                        return WeightsDamaged(generation, chunk, self._described(chunk, glance))
            if watch is not None:
                watch.proven(glance)
            return None
        finally:
            self._working -= 1
            self._ended.set()
            self._ended = anyio.Event()

    def _digests(self, chunks: Sequence[int]) -> Sequence[bytes]:
        spans = [self._memory.layout.chunk(chunk) for chunk in chunks]
        if isinstance(self._digester, BatchDigester):
            return self._digester.digests(self._memory, spans)
        return [self._digester.digest(self._memory, span) for span in spans]

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Do ``work`` in a thread, and count what it takes of a core."""

        def timed() -> tuple[T, float]:
            began = time.thread_time()
            done = work()
            return done, time.thread_time() - began

        done, cost = await anyio.to_thread.run_sync(timed)
        self._cost += cost
        return done

    def _described(self, chunk: int, glance: Glance) -> str:
        """What lies in a wrong chunk; only what was written to, where that is known."""
        within = self._memory.layout.lying_in(self._memory.layout.chunk(chunk))
        names = [name for name in within if name in glance.written] or within
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return f"chunk {chunk} ({', '.join(names[:NAMED])}{more}) is not what was verified"
