"""The suite for transports whose pulls can be asked for more (:class:`coldstart.ports.Growing`).

    class TestMine(GrowingContract):
        def open_source(self, settings):
            return FACTORY.open(settings)

Everything of :class:`coldstart.testing.transport_contract.TransportContract` is part of it. Decides what a pull that
grows promises: what was added arrives behind the rest and ends with it, well or badly, and what came too late is
refused and never written. It must not know any implementation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from coldstart.errors import TransportError
from coldstart.layout import Span, merged
from coldstart.ports import Growing, Memory, Transport
from coldstart.testing.late_writes import BOTH_WAYS, Cancelled, Pulling
from coldstart.testing.memories import layout_of
from coldstart.testing.transfers import MIB, Landings, grant, payload, pieces_of, whole
from coldstart.testing.transport_contract import SLOW, TransportContract

LAYOUT = layout_of(16 * MIB, 17, 4 * MIB)
HEAD = Span(0, 12 * MIB)
"""Takes a third of a second, so that something can be added meanwhile."""
REST = (
    Span(HEAD.end, 1),
    Span(HEAD.end + 1, MIB),
    Span(HEAD.end + 1 + MIB, LAYOUT.nbytes - HEAD.end - MIB - 1),
)


class GrowingContract(TransportContract):
    """What a transport whose pulls grow promises besides; hooks are those of its base."""

    async def test_what_is_added_arrives_with_the_rest(self) -> None:
        async with self._begun() as begun:
            for span in REST:
                assert begun.extend([span])
            assert await begun.pulling.returns_within(self.deadline)
            assert payload(begun.target, LAYOUT) == payload(begun.held, LAYOUT)
            assert merged(begun.landed.spans) == (whole(LAYOUT),)
            assert sum(span.length for span in begun.landed.spans) == LAYOUT.nbytes, "landed once each"

    async def test_a_pull_that_is_over_is_refused_more(self) -> None:
        async with self._begun() as begun:
            assert await begun.pulling.returns_within(self.deadline)
            assert not begun.extend(REST)
            assert pieces_of(begun.target, HEAD) == pieces_of(begun.held, HEAD)
            await begun.joiner.pull(begun.ticket, REST, begun.target, Landings())
            assert payload(begun.target, LAYOUT) == payload(begun.held, LAYOUT)
            assert all(span.end <= HEAD.end for span in begun.landed.spans)

    async def test_nothing_is_added_to_another_grant(self) -> None:
        async with self._begun() as begun:
            other = await begun.source.offer(grant("other"), begun.held)
            assert not _growing(begun.joiner).extend(other, REST)
            begun.pulling.cancel("by anyio")
            assert await begun.pulling.returns_within(self.deadline)

    async def test_what_was_added_fails_with_the_pull(self) -> None:
        async with self._begun() as begun:
            assert begun.extend(REST)
            await self.kill(begun.source)
            with pytest.raises(TransportError):
                await begun.pulling.returns_within(self.deadline)
            assert not begun.extend(REST)

    @BOTH_WAYS
    async def test_what_was_added_is_quiet_when_the_cancelled_pull_is(self, cancelled: Cancelled) -> None:
        async with self._begun() as begun:
            assert begun.extend(REST)
            begun.pulling.cancel(cancelled)
            assert await begun.pulling.returns_within(self.deadline)
            assert not begun.extend(REST)
            before = payload(begun.target, LAYOUT)
            await begun.joiner.pull(begun.ticket, [], begun.target, Landings())
            assert payload(begun.target, LAYOUT) == before

    @asynccontextmanager
    async def _begun(self) -> AsyncIterator[Begun]:
        """A pull of :data:`HEAD` of which something has landed."""
        self._needs_pace()
        held, target, landed = self.memory(LAYOUT, seed=1), self.memory(LAYOUT, fill=0xAA), Landings()
        async with self._pair(lend_bytes_per_second=SLOW) as (source, joiner):
            ticket = await source.offer(grant("t"), held)
            pulling = Pulling(joiner, ticket, target, landed, [HEAD])
            await landed.first()
            yield Begun(source, joiner, held, target, ticket, landed, pulling)


@dataclass
class Begun:
    """A pull that is under way."""

    source: Transport
    joiner: Transport
    held: Memory
    target: Memory
    ticket: bytes
    landed: Landings
    pulling: Pulling

    def extend(self, spans: Sequence[Span]) -> bool:
        return _growing(self.joiner).extend(self.ticket, spans)


def _growing(transport: Transport) -> Growing:
    assert isinstance(transport, Growing), f"{transport.name} cannot be asked for more"
    return transport
