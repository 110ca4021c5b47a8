"""The transport keeps the transports' contract, in one process, over Gloo."""

from __future__ import annotations

from coldstart_nccl import GLOO, NCCL

from coldstart.ports import Preparing, Routing, Transport, TransportFactory, TransportSettings
from coldstart.testing.connecting_contract import ConnectingContract

FACTORIES_FIT: tuple[TransportFactory, ...] = (GLOO, NCCL)


class TestOverGloo(ConnectingContract):
    def open_source(self, settings: TransportSettings) -> Transport:
        transport = GLOO.open(settings)
        assert isinstance(transport, Preparing)
        assert isinstance(transport, Routing)
        return transport
