"""Digests of ranges of memory, on every device the same number.

Decides where the digest ``csfp1`` is computed: bytes in host memory by numpy, bytes on a device where
they lie, several spans in one go. What the number is is decided in ``csfp1.py``, how a device computes it
in ``rowsums.py``. This module must not know what the bytes mean nor where truth is kept
(``identity.py``). The memory is in ``arena.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from coldstart import rowsums
from coldstart.csfp1 import ALGORITHM, ROW_BYTES, finish, sums_of_views
from coldstart.driver import apart_from_captures
from coldstart.errors import IntegrityError
from coldstart.layout import Span
from coldstart.ports import Memory

BATCH_BYTES = 2 * 1024**3
"""Most bytes of one call on a device: under a millisecond of its time."""


@runtime_checkable
class Resident(Protocol):
    """Memory that can show its bytes as tensors where they lie (:class:`coldstart.arena.Arena`)."""

    def resident(self, span: Span) -> Sequence[tuple[int, torch.Tensor]]:
        """The parts of ``span`` that hold weights: stream offset and 1-d uint8 tensor, in order."""
        ...


class ChunkDigester:
    """Digests of CPU memory by numpy, of other memory where it lies, by a kernel or torch operators.

    On a CPU one call uses one core, without the interpreter lock, so that several chunks can be hashed in
    several threads. On a device a call costs the host about as much for many chunks as for one.
    """

    @property
    def algorithm(self) -> str:
        return ALGORITHM

    def prepare(self, device: str) -> None:
        """Make ready what digests on ``device`` need: up to seconds, where a kernel is compiled.

        Blocks; call it in a thread while there is nothing to hash yet. Digests work without it.
        """
        if device != "cpu":
            with apart_from_captures(device):
                rowsums.prepare(torch.device(device))

    def digest(self, memory: Memory, span: Span) -> bytes:
        """16 bytes over every byte of ``span``; lane 0 first, each little-endian.

        Raises:
            IntegrityError: the memory lent more or fewer bytes than the span has.
        """
        (found,) = self.digests(memory, [span])
        return found

    def digests(self, memory: Memory, spans: Sequence[Span]) -> Sequence[bytes]:
        """The digest of each span; raises as :meth:`digest` does."""
        if memory.device != "cpu" and isinstance(memory, Resident):
            with apart_from_captures(memory.device):
                return _on_device(memory, spans, torch.device(memory.device))
        return [_of_views(memory, span) for span in spans]

    def at_once(self, memory: Memory) -> int:
        """Chunks of ``memory`` that :meth:`digests` should be given in one call, at most; 1 on a CPU."""
        if memory.device == "cpu" or not isinstance(memory, Resident):
            return 1
        return max(1, BATCH_BYTES // memory.layout.chunk_bytes)


def _of_views(memory: Memory, span: Span) -> bytes:
    with memory.reading(span) as views:
        lent = sum(view.nbytes for view in views)
        if lent != span.length:
            raise IntegrityError(f"memory lent {lent} bytes for the {span.length} bytes at {span.offset}")
        (found,) = finish(sums_of_views(views, span.length), [span.length])
        return found


def _on_device(memory: Resident, spans: Sequence[Span], device: torch.device) -> Sequence[bytes]:
    """Neighbours are hashed as one span; the rows are the same."""
    order = sorted(range(len(spans)), key=lambda index: spans[index])
    parts = [(memory.resident(part), part) for part in _joined([spans[index] for index in order])]
    sums = rowsums.sums_on_device(parts, device)
    found = finish(sums, [spans[index].length for index in order])
    by_index = dict(zip(order, found, strict=True))
    return [by_index[index] for index in range(len(spans))]


def _joined(spans: Sequence[Span]) -> Sequence[Span]:
    """Spans in order, joined where one begins at the end of another's last whole row."""
    joined: list[Span] = []
    for span in spans:
        if joined and joined[-1].end == span.offset and joined[-1].length % ROW_BYTES == 0:
            last = joined.pop()
            joined.append(Span(last.offset, last.length + span.length))
        else:
            joined.append(span)
    return joined
