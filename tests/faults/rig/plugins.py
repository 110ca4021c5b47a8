"""What a worker of the fault tests may be built with: tcp through a proxy, and a check that waits.

``relayed`` is tcp whose tickets name a proxy instead of the source's own port, which it writes to
a file for that proxy. ``gated`` is the tensors skeleton whose self-check lasts as long as a file
exists. Both are told by environment variables which; the product knows nothing of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from coldstart.ports import API, Availability, Grant, Memory, Skeleton, TransportSettings
from coldstart.skeletons.tensors import Tensors, TensorsSkeleton
from coldstart.transports import wire
from coldstart.transports.tcp import TcpTransport

PORT_FILE = "RIG_PORT_FILE"
"""Where the source's real port is written."""
PROXY_PORT = "RIG_PROXY_PORT"
"""The port that tickets name; unset: the real one."""
GATE_FILE = "RIG_GATE_FILE"
"""The gate is shut, and the self-check lasts, as long as this exists."""


class RelayedTcp(TcpTransport):
    async def offer(self, grant: Grant, memory: Memory) -> bytes:
        ticket = wire.decode_ticket(await super().offer(grant, memory))
        Path(os.environ[PORT_FILE]).write_text(str(ticket.port))
        return replace(ticket, port=int(os.environ.get(PROXY_PORT, ticket.port))).encode()


class GatedSkeleton(TensorsSkeleton):
    def self_check(self, module: Tensors) -> Sequence[str]:
        while Path(os.environ[GATE_FILE]).exists():
            time.sleep(0.01)
        return super().self_check(module)


class _RelayedFactory:
    api: int = API

    def probe(self) -> Availability:
        return Availability(usable=True)

    def open(self, settings: TransportSettings) -> RelayedTcp:
        return RelayedTcp(settings)


class _GatedFactory:
    api: int = API

    def probe(self) -> Availability:
        return Availability(usable=True)

    def open(self, *, dtype: str = "", **options: str) -> Skeleton[Tensors]:
        return GatedSkeleton(dtype=dtype)


RELAYED = _RelayedFactory()
GATED = _GatedFactory()
