"""The part of the transports' suite about writing late: an abandoned pull that has returned is quiet.

A late write lands in weights that somebody else has verified since, so a transport either lets no
cancelled ``pull`` return before its last writer has left, or says in its traits that it is not
``abortable``; then its buffers are quarantined and nothing here applies. Two ways to find a
liar: hold a writer inside the target's memory and see whether ``pull`` waits for it, and let a
source send on after the joiner has left. A pull is cancelled as anyio does it and as asyncio
does it, since what stops for the one may run on for the other.

``transport_contract.py`` brings both classes to every transport's test file.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import Literal

import anyio
import pytest

from coldstart.layout import Layout, Span
from coldstart.ports import Landed, Memory, Region, Transport
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transfers import MIB, Landings, eventually, payload, whole

SendLate = Callable[[], Awaitable[None]]
"""Lets a source send what it still has for a joiner that has left; returns when it has tried."""

Cancelled = Literal["by anyio", "by asyncio"]
BOTH_WAYS = pytest.mark.parametrize("cancelled", ["by anyio", "by asyncio"])

EARLY_SECONDS = 0.1
"""A pull that does not wait for its writers returns in this; one that does never returns early."""
CANCEL_SECONDS = 1.0
CAUGHT_SECONDS = 30.0


class Gated:
    """Memory that holds threads inside ``writing`` until :meth:`let_go`, with the views in their hands.

    The event loop's own thread is never held: it cannot be caught between two turns.
    """

    def __init__(self, inner: Memory) -> None:
        self.layout, self.device = inner.layout, inner.device
        self._inner = inner
        self._loop = threading.get_ident()
        self._go = threading.Event()
        self._lock = threading.Lock()
        self.held = 0
        """Threads that are inside now."""

    def let_go(self) -> None:
        self._go.set()

    def regions(self, span: Span) -> Sequence[Region]:
        return self._inner.regions(span)

    def reading(self, span: Span) -> AbstractContextManager[Sequence[memoryview]]:
        return self._inner.reading(span)

    @contextmanager
    def writing(self, span: Span) -> Iterator[Sequence[memoryview]]:
        with self._inner.writing(span) as views:
            if threading.get_ident() == self._loop:
                yield views
                return
            self._count(1)
            try:
                assert self._go.wait(CAUGHT_SECONDS), "the test forgot its writers"
                yield views
            finally:
                self._count(-1)

    def _count(self, step: int) -> None:
        with self._lock:
            self.held += step


class Pulling:
    """A pull in a task of its own that can be cancelled in either way; of everything, unless ``spans`` are given."""

    def __init__(
        self, transport: Transport, ticket: bytes, into: Memory, landed: Landed, spans: Sequence[Span] = ()
    ) -> None:
        self._scope = anyio.CancelScope()
        self._task = asyncio.create_task(self._pull(transport, ticket, into, landed, spans or [whole(into.layout)]))

    async def _pull(
        self, transport: Transport, ticket: bytes, into: Memory, landed: Landed, spans: Sequence[Span]
    ) -> None:
        with self._scope:
            await transport.pull(ticket, spans, into, landed)

    @property
    def returned(self) -> bool:
        return self._task.done()

    def cancel(self, cancelled: Cancelled) -> None:
        if cancelled == "by anyio":
            self._scope.cancel()
        else:
            self._task.cancel()

    async def returns_within(self, seconds: float) -> bool:
        """Wait for the pull; true if it has returned. Raises what it raised, but for its cancellation."""
        await asyncio.wait([self._task], timeout=seconds)
        if not self._task.done():
            return False
        if not self._task.cancelled():
            self._task.result()
        return True


class LateWriteContract:
    """What every transport promises, storage too. Two hooks, then the promise."""

    def holding(self, held: Memory) -> AbstractAsyncContextManager[tuple[Transport, bytes]]:
        """A transport that can pull what ``held`` holds, and the ticket for it."""
        raise NotImplementedError

    def memory(self, layout: Layout, *, seed: int | None = None, fill: int = 0) -> Memory:
        """Memory of a kind that the transport supports, with random or constant content."""
        return BytesMemory(layout, seed=seed, fill=fill)

    @BOTH_WAYS
    async def test_a_cancelled_pull_waits_for_those_who_write(self, cancelled: Cancelled) -> None:
        layout = layout_of(24 * MIB)
        held, inner, landed = self.memory(layout, seed=14), self.memory(layout, fill=0xAA), Landings()
        target = Gated(inner)
        async with self.holding(held) as (transport, ticket):
            must_be_abortable(transport)
            pulling = Pulling(transport, ticket, target, landed)
            try:
                await eventually(lambda: target.held > 0 or pulling.returned)
                if pulling.returned:  # written by the loop itself, or by address: see SendingContract
                    assert await pulling.returns_within(0)
                    return
                pulling.cancel(cancelled)
                assert not await pulling.returns_within(EARLY_SECONDS), "the pull returned while it was being written"
            finally:
                target.let_go()
            assert await pulling.returns_within(CANCEL_SECONDS), "cancelling took too long"
            assert target.held == 0, "somebody still writes for a pull that has returned"
            before, count = payload(inner, layout), len(landed.spans)
            await transport.pull(ticket, [whole(layout)], self.memory(layout), Landings())
            assert payload(inner, layout) == before
            assert len(landed.spans) == count


class SendingContract(LateWriteContract):
    """What transports between peers promise besides, whatever the source does. One hook, then the promise."""

    def sending_late(self, held: Memory) -> AbstractAsyncContextManager[tuple[Transport, bytes, SendLate]]:
        """A joiner, a ticket for ``held``, and what makes its source send although the joiner has left.

        The source must be slow enough to be caught in the middle of 64 MiB. Override it with a
        source that breaks the protocol, if the protocol has a source that sends.
        """
        raise NotImplementedError

    @BOTH_WAYS
    async def test_nothing_is_written_after_a_cancelled_pull_has_returned(self, cancelled: Cancelled) -> None:
        layout = layout_of(64 * MIB)
        held, target, landed = self.memory(layout, seed=10), self.memory(layout, fill=0xAA), Landings()
        async with self.sending_late(held) as (joiner, ticket, send_late):
            must_be_abortable(joiner)
            pulling = Pulling(joiner, ticket, target, landed)
            await eventually(lambda: bool(landed.spans) or pulling.returned)
            pulling.cancel(cancelled)
            assert await pulling.returns_within(CANCEL_SECONDS), "cancelling took too long"
            if isinstance(target, BytesMemory):
                assert target.lent == 0, "the target is still lent to a pull that has returned"
            before, count = payload(target, layout), len(landed.spans)
            assert b"\xaa" * MIB in before, "the pull was not caught half-way"
            await send_late()
            assert payload(target, layout) == before, "written after the pull had returned"
            assert len(landed.spans) == count, "landed after the pull had returned"


def must_be_abortable(transport: Transport) -> None:
    """Skips the test for a transport that says itself that it may write late."""
    if not transport.traits.abortable:
        pytest.skip("not abortable: its buffers are quarantined instead")
