"""The transport keeps the transports' contract, in one process, over Gloo."""

from __future__ import annotations

from coldstart_nccl import GLOO, NCCL

from coldstart.ports import Counting, Preparing, Routing, Transport, TransportFactory, TransportSettings
from coldstart.testing.connecting_contract import ConnectingContract
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transfers import Landings, eventually, grant, whole

FACTORIES_FIT: tuple[TransportFactory, ...] = (GLOO, NCCL)


LAYOUT = layout_of(9_000_001, 3)


async def test_a_source_counts_what_it_has_sent() -> None:
    source, joiner = GLOO.open(TransportSettings()), GLOO.open(TransportSettings())
    assert isinstance(source, Counting)
    ticket = await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1))
    for count in (1, 2):
        await joiner.pull(ticket, [whole(LAYOUT)], BytesMemory(LAYOUT), Landings())
        await eventually(lambda: not source.reading("t"))
        assert source.sent == count * LAYOUT.nbytes
    assert joiner.sent == 0
    await joiner.aclose()
    await source.aclose()


class TestOverGloo(ConnectingContract):
    def open_source(self, settings: TransportSettings) -> Transport:
        transport = GLOO.open(settings)
        assert isinstance(transport, Preparing)
        assert isinstance(transport, Routing)
        return transport
