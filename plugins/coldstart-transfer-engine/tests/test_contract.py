"""transfer-engine keeps the transports' contract over TCP, in one process."""

from __future__ import annotations

from coldstart_transfer_engine import FACTORY

from coldstart.ports import Transport, TransportFactory, TransportSettings
from coldstart.testing.connecting_contract import ConnectingContract

FACTORY_FITS: TransportFactory = FACTORY


class TestTransferEngine(ConnectingContract):
    def open_source(self, settings: TransportSettings) -> Transport:
        return FACTORY.open(settings)
