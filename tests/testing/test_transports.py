"""The loopback keeps the transports' contract; each wrapper breaks it in the way it names."""

from __future__ import annotations

import anyio
import pytest

from coldstart.errors import TransportError
from coldstart.layout import Span, merged
from coldstart.ports import Grant, Transport, TransportSettings
from coldstart.testing.growing_contract import GrowingContract
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transport_contract import Landings, whole
from coldstart.testing.transports import (
    Breaking,
    Corrupting,
    Delayed,
    Loopback,
    LoopbackTransport,
    Lying,
    Repeating,
    Short,
    Stalling,
    Unoffering,
    WritingLate,
)
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime

LAYOUT = layout_of(1000, 1, 3000, chunk_bytes=1024)
GRANT = Grant(transfer="t", joiner="j", fence=1, seconds=60.0)


class TestLoopback(GrowingContract):
    """The contract; in real time, because the suite watches a clock."""

    @pytest.fixture(autouse=True)
    def _hub(self) -> None:
        self.hub = Loopback()

    def open_source(self, settings: TransportSettings) -> Transport:
        return LoopbackTransport(self.hub, settings.lend_bytes_per_second)

    def open_joiner(self, settings: TransportSettings) -> Transport:
        return LoopbackTransport(self.hub, settings.lend_bytes_per_second)


class TestFaults:
    """In virtual time."""

    @pytest.fixture
    def anyio_backend(self) -> VirtualTime:
        return VIRTUAL_TIME

    async def pulled(self, wrapped: Transport) -> tuple[BytesMemory, BytesMemory, Landings]:
        held, target, landed = BytesMemory(LAYOUT, seed=1), BytesMemory(LAYOUT, fill=0xAA), Landings()
        ticket = await wrapped.offer(GRANT, held)
        with anyio.move_on_after(60):
            await wrapped.pull(ticket, [whole(LAYOUT)], target, landed)
        return held, target, landed

    def inner(self) -> Transport:
        return LoopbackTransport(Loopback(), step=512)

    async def test_delayed_is_late_and_right(self) -> None:
        began = anyio.current_time()
        held, target, _ = await self.pulled(Delayed(self.inner(), offer=2.0, pull=3.0))
        assert target.storages == held.storages
        assert anyio.current_time() - began == pytest.approx(5.0)

    async def test_stalling_brings_a_part_and_never_ends(self) -> None:
        began = anyio.current_time()
        _, _, landed = await self.pulled(Stalling(self.inner(), 1500))
        assert merged(landed.spans) == (Span(0, 1500),)
        assert anyio.current_time() - began == pytest.approx(60.0)

    async def test_breaking_raises_what_it_was_given(self) -> None:
        with pytest.raises(TransportError, match="gone"):
            await self.pulled(Breaking(self.inner(), 100))
        with pytest.raises(ZeroDivisionError):
            await self.pulled(Breaking(self.inner(), 100, ZeroDivisionError()))

    async def test_short_returns_early_as_if_all_were_there(self) -> None:
        _, _, landed = await self.pulled(Short(self.inner(), 100))
        assert merged(landed.spans) == (Span(0, 100),)

    async def test_corrupting_flips_one_bit_of_one_chunk(self) -> None:
        held, target, _ = await self.pulled(Corrupting(self.inner(), 2))
        ours, theirs = target.content(), held.content()
        wrong = [index for index in range(LAYOUT.nbytes) if ours[index] != theirs[index]]
        assert len(wrong) == 1
        assert wrong[0] // LAYOUT.chunk_bytes == 2

    async def test_lying_reports_everything_and_writes_nothing(self) -> None:
        _, target, landed = await self.pulled(Lying(self.inner()))
        assert merged(landed.spans) == (whole(LAYOUT),)
        assert all(set(storage) == {0xAA} for storage in target.storages)

    async def test_repeating_reports_everything_many_times(self) -> None:
        held, target, landed = await self.pulled(Repeating(self.inner()))
        at_return = len(landed.spans)
        assert target.storages == held.storages
        await anyio.sleep(1.0)
        assert len(landed.spans) > at_return

    async def test_writing_late_writes_after_it_was_cancelled(self) -> None:
        transport = WritingLate(self.inner(), 1000)
        assert not transport.traits.abortable
        _, target, _ = await self.pulled(transport)
        assert transport.write_late() >= LAYOUT.payload
        assert all(set(storage) == {0xEE} for storage in target.storages)

    async def test_unoffering_cannot_offer(self) -> None:
        with pytest.raises(TransportError, match="no room"):
            await self.pulled(Unoffering(self.inner()))
