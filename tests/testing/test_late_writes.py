"""The suite finds late writers: transports that claim to be abortable and are not fail it, each in its way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import anyio
import pytest

from coldstart.layout import Span
from coldstart.ports import Landed, Memory, Traits, Transport, TransportSettings
from coldstart.testing.late_writes import Cancelled
from coldstart.testing.memories import BytesMemory
from coldstart.testing.transport_contract import SLOW, TransportContract
from coldstart.testing.transports import LeavingBehind, Loopback, LoopbackTransport, Wrapped, WritingLate
from coldstart.transports.tcp import FACTORY

BOTH_WAYS = pytest.mark.parametrize("cancelled", ["by anyio", "by asyncio"])


class Ghost(Wrapped):
    """Everything that a cancelled pull did not bring is written by the loop, a little after it has returned."""

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        try:
            await super().pull(ticket, spans, into, landed)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(0.001, partial(scribble, into, spans))
            raise


class Echo(Wrapped):
    """Writes nothing late, but says that something has landed."""

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        try:
            await super().pull(ticket, spans, into, landed)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(0.001, landed, spans[0])
            raise


class Keeping(Wrapped):
    """Writes nothing late, but keeps the target's memory in its hands: it could."""

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        self.kept = into.writing(Span(0, 1))
        self.kept.__enter__()
        await super().pull(ticket, spans, into, landed)


def scribble(into: Memory, spans: Sequence[Span]) -> None:
    for span in spans:
        with into.writing(span) as views:
            for view in views:
                view[:] = b"\xee" * len(view)


class Suite(TransportContract):
    """The contract of a loopback or of tcp, whose joiner is wrapped."""

    __test__ = False

    def __init__(self, wrap: type[Wrapped], *, loopback: bool) -> None:
        self._wrap = wrap
        self._hub = Loopback() if loopback else None

    def open_source(self, settings: TransportSettings) -> Transport:
        return FACTORY.open(settings) if self._hub is None else LoopbackTransport(self._hub, SLOW)

    def open_joiner(self, settings: TransportSettings) -> Transport:
        return self._wrap(self.open_source(settings))


@BOTH_WAYS
@pytest.mark.parametrize("loopback", [True, False], ids=["loopback", "tcp"])
@pytest.mark.parametrize(
    ("wrap", "verdict"),
    [
        (LeavingBehind, "still lent|written after"),
        (Ghost, "written after"),
        (Echo, "landed after"),
        (Keeping, "still lent"),
    ],
)
async def test_a_late_writer_that_claims_to_be_abortable_is_caught(
    wrap: type[Wrapped], verdict: str, loopback: bool, cancelled: Cancelled
) -> None:
    suite = Suite(wrap, loopback=loopback)
    with pytest.raises(AssertionError, match=verdict):
        await suite.test_nothing_is_written_after_a_cancelled_pull_has_returned(cancelled)


@BOTH_WAYS
async def test_a_pull_that_leaves_a_writing_thread_behind_is_caught_in_the_act(cancelled: Cancelled) -> None:
    suite = Suite(LeavingBehind, loopback=False)
    with pytest.raises(AssertionError, match="returned while it was being written"):
        await suite.test_a_cancelled_pull_waits_for_those_who_write(cancelled)


@BOTH_WAYS
@pytest.mark.parametrize("loopback", [True, False], ids=["loopback", "tcp"])
async def test_the_same_suite_passes_what_is_honest(loopback: bool, cancelled: Cancelled) -> None:
    suite = Suite(Wrapped, loopback=loopback)
    await suite.test_nothing_is_written_after_a_cancelled_pull_has_returned(cancelled)
    await suite.test_a_cancelled_pull_waits_for_those_who_write(cancelled)


async def test_a_transport_that_says_so_is_not_asked() -> None:
    suite = Suite(WritingLate, loopback=True)
    with pytest.raises(pytest.skip.Exception, match="not abortable"):
        await suite.test_nothing_is_written_after_a_cancelled_pull_has_returned("by anyio")
    with pytest.raises(pytest.skip.Exception, match="not abortable"):
        await suite.test_a_cancelled_pull_waits_for_those_who_write("by anyio")


class SingleThread(Wrapped):
    """A transport in the style of many native ones: a worker thread, awaited without any care for asyncio's cancel."""

    @property
    def traits(self) -> Traits:
        return self.inner.traits

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        await anyio.to_thread.run_sync(scribble, into, spans)


class NaiveSuite(Suite):
    @asynccontextmanager
    async def holding(self, held: Memory) -> AsyncIterator[tuple[Transport, bytes]]:
        assert isinstance(held, BytesMemory)
        yield SingleThread(LoopbackTransport(Loopback())), b""


async def test_a_thread_that_outlives_asyncios_cancellation_is_caught() -> None:
    """anyio shields its worker threads from its own scopes, not from ``Task.cancel``."""
    suite = NaiveSuite(SingleThread, loopback=True)
    await suite.test_a_cancelled_pull_waits_for_those_who_write("by anyio")
    with pytest.raises(AssertionError, match="returned while it was being written"):
        await suite.test_a_cancelled_pull_waits_for_those_who_write("by asyncio")
