"""Digesters: full-coverage digests of ranges of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from coldstart.layout import Span
from coldstart.ports.memory import Memory


class Digester(Protocol):
    """Full-coverage digests of ranges of memory."""

    @property
    def algorithm(self) -> str: ...

    def digest(self, memory: Memory, span: Span) -> bytes:
        """16 bytes over every byte of ``span`` as it stands in device memory. Blocks; call in a thread."""
        ...


@runtime_checkable
class BatchDigester(Protocol):
    """What a digester may offer beside :class:`Digester`: many spans in one call, where that costs less."""

    def at_once(self, memory: Memory) -> int:
        """How many chunks of ``memory`` one call should be given at most; 1 where a thread each is better."""
        ...

    def digests(self, memory: Memory, spans: Sequence[Span]) -> Sequence[bytes]:
        """The digest of each of ``spans``, in their order. Blocks; call in a thread."""
        ...
