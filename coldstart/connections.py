"""A joiner's connections: set up once per attempt, used by all of its pulls, taken down with its slot.

Decides what a set-up that nobody waits for any more becomes. It must not know why an attempt begins or ends
(``phases/``) nor how a transport connects (``ports.Connecting``); ``joining.py`` performs the effects.
"""

from __future__ import annotations

import anyio

from coldstart.errors import ColdstartError
from coldstart.ports import Connecting, Keeping, Memory, Transport
from coldstart.telemetry import logger


class Connections:
    """Those of one joiner, by attempt.

    Args:
        memory: what all pulls are into.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._over: set[int] = set()
        self._making: dict[int, anyio.CancelScope] = {}
        self._made: dict[int, tuple[Connecting | Keeping, bytes]] = {}

    async def open(self, attempt: int, transport: Transport, ticket: bytes) -> bool:
        """Set up what stays for all pulls, unless that is done; false if the attempt was over before.

        Raises:
            TransportError: the source cannot be reached like this.
        """
        if attempt in self._over:
            return False
        if attempt in self._made:
            return True
        if isinstance(transport, Keeping):
            transport.keep(ticket)
            self._made[attempt] = transport, ticket
        if not isinstance(transport, Connecting):
            return True
        with anyio.CancelScope() as scope:
            self._making[attempt] = scope
            try:
                await transport.connect(ticket, self._memory)
            finally:
                del self._making[attempt]
            self._made[attempt] = transport, ticket
            return True
        return False

    async def close(self, attempt: int) -> None:
        """The attempt is over: take down what there is, and end what is being set up."""
        self._over.add(attempt)
        making = self._making.get(attempt)
        if making is not None:
            making.cancel()
        transport, ticket = self._made.pop(attempt, (None, b""))
        if transport is not None:
            try:
                await transport.disconnect(ticket)
            except ColdstartError as error:
                logger().warning("connection not taken down", reason=str(error))
