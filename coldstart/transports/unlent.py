"""What transports from storage have in common: they read, and have no side that lends.

Decides how such a transport says so, and that closing it ends its pulls. What is read, and how, is in ``storage.py``
for files and in ``objects.py`` for objects; which reads a span takes is planned in ``reads.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from coldstart.errors import TransportError
from coldstart.layout import Span
from coldstart.ports import Grant, Landed, Memory, Traits
from coldstart.transports.placement import Placement
from coldstart.transports.reads import Read, planned

TRAITS: Final = Traits(one_sided=True, needs_peer=False, abortable=True, device_kinds=("cpu", "cuda"), link="storage")


class Pull(Protocol):
    """One pull under way."""

    async def run(self) -> None: ...
    def stop(self, error: TransportError) -> None: ...


class Unlent:
    """The parts of ``ports.Transport`` that are alike, and how a pull is run."""

    name: Final = "storage"
    traits: Final = TRAITS

    def __init__(self) -> None:
        self._pulls: set[Pull] = set()

    async def offer(self, grant: Grant, memory: Memory) -> bytes:
        raise TransportError("storage has no source side", reason="unsupported", advice="offer another transport")

    async def revoke(self, transfer: str) -> None:
        """Nothing was offered."""

    def reading(self, transfer: str) -> bool:
        """Nobody reads what was not offered."""
        return False

    async def aclose(self) -> None:
        for pull in self._pulls:
            pull.stop(TransportError("storage transport was closed during the pull", reason="closed"))

    async def _run(self, pull: Pull) -> None:
        self._pulls.add(pull)
        try:
            await pull.run()
        finally:
            self._pulls.discard(pull)


def reads_for(spans: Sequence[Span], placement: Placement, into: Memory, landed: Landed, most: int) -> list[Read]:
    """The reads of at most ``most`` bytes that bring ``spans``; those of padding alone have landed."""
    reads: list[Read] = []
    for span in spans:
        found = planned(into.layout.pieces(span), span, placement, most)
        reads.extend(found)
        if not found and span.length:
            landed(span)
    return reads
