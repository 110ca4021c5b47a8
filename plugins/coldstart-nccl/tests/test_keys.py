"""Pairs between members of a fleet with keys: both sides prove theirs, and what they say of a pair is authenticated."""

from __future__ import annotations

from coldstart_nccl import GLOO

from coldstart.ports import Transport, TransportSettings
from coldstart.testing.keyed_contract import AuthenticatedContract


class TestOverGloo(AuthenticatedContract):
    hello_seconds = "coldstart_nccl.lender.HELLO_SECONDS"

    def open_source(self, settings: TransportSettings) -> Transport:
        return GLOO.open(settings)
