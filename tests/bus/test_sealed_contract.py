"""A bus with seals keeps the contract of a bus."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from coldstart.bus.memory import MemoryBus, MemoryStore
from coldstart.bus.notary import Notary
from coldstart.bus.redis import RedisBus
from coldstart.bus.sealed import SealedBus
from coldstart.ports import Bus
from coldstart.refusals import Refusals
from coldstart.seals import Key, Keys
from coldstart.testing.bus_contract import BusContract, Connect
from coldstart.testing.bus_contract.letters import Letters
from coldstart.testing.bus_contract.truths import Truths
from tests.bus.conftest import Server

KEYS = Keys((Key("key", b"k" * 32),))


def sealed(inner: Bus, namespace: str = "cs") -> SealedBus:
    return SealedBus(inner, Notary(lambda: KEYS, namespace, "sender", Refusals(), inner.time))


class TestSealedMemoryBus(BusContract):
    """With time that only moves when told to."""

    now = 1000.0

    async def pass_time(self, seconds: float) -> None:
        self.now += seconds
        await anyio.lowlevel.checkpoint()

    @asynccontextmanager
    async def open_bus(self) -> AsyncIterator[Connect]:
        store = MemoryStore(now=lambda: self.now)

        async def connect() -> Bus:
            return sealed(MemoryBus(store))

        yield connect


class TestSealedRedisBus(Truths, Letters):
    """What is particular to a real store: binary letters, and proofs in strings of its own."""

    @pytest.fixture(autouse=True)
    def _on(self, shared_server: Server) -> None:
        self.server = shared_server

    @asynccontextmanager
    async def open_bus(self) -> AsyncIterator[Connect]:
        namespace = self.server.namespace()

        async def connect() -> Bus:
            return sealed(await RedisBus.open(self.server.url, namespace), namespace=namespace)

        yield connect
