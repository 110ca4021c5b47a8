"""From spans of the stream to messages: what travels in one piece, and where its bytes are.

Decides how spans are cut, and which memory holds a message on one side. Both sides cut the same
spans in the same way, so they agree on every message without a word, whatever their memory looks
like: an arena in one piece, or an engine's tensors all over the device. Pure; how a message with
several parts is packed is for who moves it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from coldstart.layout import Layout, Span
from coldstart.ports import Memory, Region
from coldstart_nccl.communicator import Block, Message, Part


class Places:
    """Where the bytes of a memory are, by their offset in the stream."""

    def __init__(self, regions: Iterable[Region]) -> None:
        found = sorted(regions, key=lambda region: region.offset)
        self._offsets = [region.offset for region in found]
        self._blocks = [Block(region.device, region.address, region.length) for region in found]

    @classmethod
    def of(cls, memory: Memory) -> Places:
        return cls(memory.regions(Span(0, memory.layout.nbytes)))

    @property
    def scattered(self) -> bool:
        return len(self._blocks) > 1

    def message(self, span: Span) -> Message:
        return Message(span, tuple(self._parts(span)))

    def _parts(self, span: Span) -> Iterator[Part]:
        for index in range(max(bisect_right(self._offsets, span.offset) - 1, 0), len(self._blocks)):
            start, block = self._offsets[index], self._blocks[index]
            if start >= span.end:
                return
            low, high = max(start, span.offset), min(start + block.length, span.end)
            if low < high:
                yield Part(block, low - start, high - low, low - span.offset)


def cut(spans: Iterable[Span], size: int) -> Iterator[Span]:
    """``spans`` in pieces of at most ``size`` bytes, in the order given."""
    for span in spans:
        for offset in range(span.offset, span.end, size):
            yield Span(offset, min(size, span.end - offset))


def fits(spans: Sequence[Span], layout: Layout) -> bool:
    """Whether all spans hold bytes and are inside the stream."""
    return all(span.length > 0 and span.end <= layout.nbytes for span in spans)
