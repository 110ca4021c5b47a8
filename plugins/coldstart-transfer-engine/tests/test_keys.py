"""Lines between members of a fleet with keys: both sides prove theirs, and what the source says is authenticated."""

from __future__ import annotations

from coldstart_transfer_engine import FACTORY

from coldstart.ports import Transport, TransportSettings
from coldstart.testing.keyed_contract import AuthenticatedContract


class TestTransferEngine(AuthenticatedContract):
    hello_seconds = "coldstart_transfer_engine.line.HELLO_SECONDS"

    def open_source(self, settings: TransportSettings) -> Transport:
        return FACTORY.open(settings)
