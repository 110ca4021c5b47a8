"""The suite for transports that connect before the first byte (:class:`coldstart.ports.Connecting`).

    class TestMine(ConnectingContract):
        def open_source(self, settings):
            return FACTORY.open(settings)

Everything of :class:`coldstart.testing.transport_contract.TransportContract` is part of it. Decides what a
connection promises: nothing is written by it, it serves pull after pull, whoever ends it leaves nothing behind,
and a pull without one works as well. It must not know any implementation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
import pytest

from coldstart.errors import TransportError
from coldstart.layout import Span
from coldstart.ports import Connecting, Memory, Transport
from coldstart.testing.memories import layout_of
from coldstart.testing.transfers import MIB, Landings, eventually, grant, payload, resources, whole
from coldstart.testing.transport_contract import SLOW, TransportContract

LAYOUT = layout_of(3 * MIB + 1, 17, 70_000)
QUARTERS = [Span(offset, min(MIB, LAYOUT.nbytes - offset)) for offset in range(0, LAYOUT.nbytes, MIB)]
AT_ONCE = 2.0
"""Seconds for what waits for nobody."""


class ConnectingContract(TransportContract):
    """What a transport that connects promises besides; hooks are those of its base."""

    async def test_connecting_writes_nothing_and_serves_pull_after_pull(self) -> None:
        async with self._connected() as (source, joiner, held, target, ticket):
            assert payload(target, LAYOUT) == b"\xaa" * LAYOUT.payload
            await eventually(lambda: source.reading("t"))
            for span in QUARTERS:
                landed = Landings()
                await joiner.pull(ticket, [span], target, landed)
                assert sum(each.length for each in landed.spans) == span.length
                assert source.reading("t"), "the connection is kept"
            assert payload(target, LAYOUT) == payload(held, LAYOUT)

    async def test_connecting_again_changes_nothing(self) -> None:
        async with self._connected() as (_, joiner, held, target, ticket):
            await _connecting(joiner).connect(ticket, target)
            await joiner.pull(ticket, [whole(LAYOUT)], target, Landings())
            assert payload(target, LAYOUT) == payload(held, LAYOUT)

    async def test_after_disconnect_nobody_reads_and_a_pull_works_by_itself(self) -> None:
        async with self._connected() as (source, joiner, held, target, ticket):
            await _connecting(joiner).disconnect(ticket)
            await _connecting(joiner).disconnect(ticket)
            await _connecting(joiner).disconnect(b"never heard of")
            await eventually(lambda: not source.reading("t"))
            await joiner.pull(ticket, [whole(LAYOUT)], target, Landings())
            assert payload(target, LAYOUT) == payload(held, LAYOUT)
            await eventually(lambda: not source.reading("t"))

    async def test_a_pull_into_other_memory_is_not_mixed_up(self) -> None:
        async with self._connected() as (_, joiner, held, target, ticket):
            other = self.memory(LAYOUT, fill=0x55)
            await joiner.pull(ticket, [whole(LAYOUT)], other, Landings())
            assert payload(other, LAYOUT) == payload(held, LAYOUT)
            assert payload(target, LAYOUT) == b"\xaa" * LAYOUT.payload

    @pytest.mark.parametrize("ticket", [b"", b"garbage", b"\xc1" * 20_000])
    async def test_connecting_with_a_garbage_ticket_fails(self, ticket: bytes) -> None:
        async with self._pair() as (_, joiner):
            await self._refused(joiner, ticket)

    async def test_connecting_to_a_grant_that_has_ended_fails(self) -> None:
        async with self._pair() as (source, joiner):
            held = self.memory(LAYOUT, seed=1)
            expired = await source.offer(grant("a", seconds=0.0), held)
            revoked = await source.offer(grant("b"), held)
            await source.revoke("b")
            for ticket in (expired, revoked):
                await self._refused(joiner, ticket)
            await self._still_works(source, joiner)

    async def test_revoking_does_not_wait_for_a_connection_that_is_idle(self) -> None:
        async with self._connected() as (source, joiner, _, target, ticket):
            await eventually(lambda: source.reading("t"))
            with anyio.fail_after(AT_ONCE):
                await source.revoke("t")
            await self._fails(joiner, ticket, target)
            assert payload(target, LAYOUT) == b"\xaa" * LAYOUT.payload
            await self._still_works(source, joiner)

    async def test_a_source_that_dies_meanwhile_fails_the_next_pull(self) -> None:
        async with self._connected() as (source, joiner, _, target, ticket):
            await self.kill(source)
            await self._fails(joiner, ticket, target)
            await self._refused(joiner, ticket)

    async def test_a_cancelled_pull_ends_the_connection_and_the_next_one_works(self) -> None:
        self._needs_pace()
        layout = layout_of(64 * MIB)
        async with self._pair(lend_bytes_per_second=SLOW) as (source, joiner):
            target, landed = self.memory(layout), Landings()
            ticket = await source.offer(grant("t"), self.memory(layout, seed=1))
            await _connecting(joiner).connect(ticket, target)
            with anyio.fail_after(self.deadline):
                async with anyio.create_task_group() as group:
                    group.start_soon(joiner.pull, ticket, [whole(layout)], target, landed)
                    await landed.first()
                    group.cancel_scope.cancel()
            await eventually(lambda: not source.reading("t"), self.deadline)
            await joiner.pull(ticket, [Span(0, MIB)], target, Landings())
            await eventually(lambda: not source.reading("t"))

    async def test_a_cancelled_connect_leaves_nothing(self) -> None:
        async with self._pair() as (source, joiner):
            target, ticket = self.memory(LAYOUT), await source.offer(grant("t"), self.memory(LAYOUT, seed=1))
            with anyio.move_on_after(0):
                await _connecting(joiner).connect(ticket, target)
            await eventually(lambda: not source.reading("t"), self.deadline)
            await self._still_works(source, joiner)

    async def test_closing_either_side_ends_connections_and_leaves_nothing(self) -> None:
        await anyio.to_thread.run_sync(int)  # anyio's own worker threads are not the transport's
        before = resources()
        for first in (0, 1):
            async with self._connected() as (source, joiner, _, _, _):
                with anyio.fail_after(self.deadline):
                    for transport in ((source, joiner), (joiner, source))[first]:
                        await transport.aclose()
        await eventually(lambda: resources() <= before, self.deadline)

    # ------------------------------------------------------------------------------- helpers

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[Transport, Transport, Memory, Memory, bytes]]:
        """Source, joiner, lent memory, target and the ticket that the joiner is connected by."""
        async with self._pair() as (source, joiner):
            held, target = self.memory(LAYOUT, seed=1), self.memory(LAYOUT, fill=0xAA)
            ticket = await source.offer(grant("t"), held)
            await _connecting(joiner).connect(ticket, target)
            yield source, joiner, held, target, ticket

    async def _refused(self, joiner: Transport, ticket: bytes) -> None:
        with anyio.fail_after(self.deadline), pytest.raises(TransportError) as caught:
            await _connecting(joiner).connect(ticket, self.memory(LAYOUT))
        assert caught.value.reason
        assert "\n" not in str(caught.value)


def _connecting(transport: Transport) -> Connecting:
    assert isinstance(transport, Connecting), f"{transport.name} does not connect beforehand"
    return transport
