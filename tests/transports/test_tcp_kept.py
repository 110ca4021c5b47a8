"""Connections of tcp that outlive a pull: used again, replaced when dead, closed when nobody keeps them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from coldstart.layout import Span
from coldstart.ports import Keeping, TransportSettings
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transfers import MIB, Landings, eventually, grant, payload, resources, whole
from coldstart.transports.tcp import FACTORY, TcpTransport

LAYOUT = layout_of(3 * MIB)
PARTS = [Span(0, MIB), Span(MIB, MIB), Span(2 * MIB, MIB)]


class Pair:
    """A source, a joiner, and a ticket."""

    def __init__(self, source: TcpTransport, joiner: TcpTransport, held: BytesMemory, ticket: bytes) -> None:
        self.source, self.joiner, self.held, self.ticket = source, joiner, held, ticket
        self.target = BytesMemory(LAYOUT, fill=0xAA)

    async def pull(self, *spans: Span) -> None:
        await self.joiner.pull(self.ticket, spans, self.target, Landings())


@asynccontextmanager
async def pair(io_seconds: float = 5.0, connections: int = 1) -> AsyncIterator[Pair]:
    settings = TransportSettings(io_seconds=io_seconds, connections=connections)
    source, joiner = FACTORY.open(settings), FACTORY.open(settings)
    held = BytesMemory(LAYOUT, seed=1)
    try:
        yield Pair(source, joiner, held, await source.offer(grant("t"), held))
    finally:
        await joiner.aclose()
        await source.aclose()


def test_tcp_keeps() -> None:
    assert isinstance(FACTORY.open(TransportSettings()), Keeping)


@pytest.fixture
def dialled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each connection that a joiner makes."""
    from coldstart.transports import tcp_joiner

    made: list[str] = []
    real = tcp_joiner.Pull._dial

    def dial(self: tcp_joiner.Pull, sock: object) -> None:
        made.append("connection")
        real(self, sock)  # type: ignore[arg-type]

    monkeypatch.setattr(tcp_joiner.Pull, "_dial", dial)
    return made


async def test_all_pulls_of_a_ticket_that_is_kept_use_the_same_connections(dialled: list[str]) -> None:
    async with pair(connections=2) as both:
        both.joiner.keep(both.ticket)
        for span in PARTS:
            await both.pull(span)
        assert payload(both.target, LAYOUT) == payload(both.held, LAYOUT)
        assert len(dialled) == 2
        assert both.source.reading("t")
        await both.joiner.disconnect(both.ticket)
        await both.joiner.disconnect(both.ticket)
        await eventually(lambda: not both.source.reading("t"))
        await both.pull(PARTS[0])
        await eventually(lambda: not both.source.reading("t"))


async def test_nothing_is_kept_unasked(dialled: list[str]) -> None:
    async with pair() as both:
        for span in PARTS:
            await both.pull(span)
        assert len(dialled) == 3
        await eventually(lambda: not both.source.reading("t"))


async def test_a_connection_that_the_source_has_given_up_is_replaced(dialled: list[str]) -> None:
    async with pair(io_seconds=0.2) as both:
        both.joiner.keep(both.ticket)
        await both.pull(PARTS[0])
        await eventually(lambda: not both.source.reading("t"))
        await both.pull(*PARTS)
        assert len(dialled) == 2
        assert payload(both.target, LAYOUT) == payload(both.held, LAYOUT)


async def test_a_cancelled_pull_leaves_no_connection_that_is_out_of_step(dialled: list[str]) -> None:
    layout = layout_of(64 * MIB)
    settings = TransportSettings(lend_bytes_per_second=40.0 * MIB, connections=1)
    source, joiner = FACTORY.open(settings), FACTORY.open(settings)
    held, target, landed = BytesMemory(layout, seed=1), BytesMemory(layout), Landings()
    ticket = await source.offer(grant("t"), held)
    joiner.keep(ticket)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(joiner.pull, ticket, [whole(layout)], target, landed)
        await landed.first()
        tasks.cancel_scope.cancel()
    await eventually(lambda: not source.reading("t"))
    await joiner.pull(ticket, [Span(0, MIB)], target, Landings())
    assert len(dialled) == 2
    await joiner.aclose()
    await source.aclose()


async def test_closing_either_side_closes_what_is_kept() -> None:
    before = resources()
    async with pair() as both:
        both.joiner.keep(both.ticket)
        await both.pull(PARTS[0])
    await eventually(lambda: resources() <= before)
