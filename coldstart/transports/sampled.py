"""Whether memory that others have filled holds what the checkpoint says: a sample of its tensors is compared.

Decides which bytes are compared, and what is said of those that differ. A sample is no digest: it finds a module that
was never loaded, or that holds another checkpoint or merged adapters, before its digests become everybody's truth.
It must not know torch or modules; how the stored bytes are read is the business of the transport that is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NoReturn

from coldstart.errors import SkeletonError
from coldstart.layout import Layout, Span
from coldstart.ports import Memory, Region, Transport

SAMPLE_BYTES: Final = 4096
MAX_SAMPLES: Final = 256
"""A request each where the checkpoint is in an object store."""
_STEP: Final = 8
"""Bytes that no number of a checkpoint is longer than."""


def samples(layout: Layout) -> tuple[Span, ...]:
    """The middle of each storage, or of as many as may be, evenly spread."""
    every = -(-len(layout.storages) // MAX_SAMPLES)
    found: list[Span] = []
    for start, nbytes in list(zip(layout.starts, layout.storages, strict=True))[:: max(every, 1)]:
        length = min(nbytes, SAMPLE_BYTES)
        found.append(Span(start + (nbytes - length) // 2 // _STEP * _STEP, length))
    return tuple(span for span in found if span.length)


async def compare(memory: Memory, stored: Transport) -> None:
    """See that a sample of ``memory`` is what ``stored`` brings.

    Raises:
        SkeletonError: some tensor differs.
        CheckpointError: storage cannot be read.
    """
    compared = _Compared(memory)
    await stored.pull(b"", samples(memory.layout), compared, lambda span: None)
    if compared.differing:
        first, *others = compared.differing
        more = f", and {len(others)} more of {len(samples(memory.layout))} tensors that were compared" if others else ""
        raise SkeletonError(
            f"{first} is not what the checkpoint holds{more}",
            advice="load it into the module before it is lent; changed weights take a checkpoint of their own",
        )


class _Compared:
    """A target that keeps nothing: what is written is compared with what ``memory`` holds."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.differing: list[str] = []

    @property
    def layout(self) -> Layout:
        return self._memory.layout

    @property
    def device(self) -> str:
        return "cpu"

    def regions(self, span: Span) -> Sequence[Region]:
        return ()

    def reading(self, span: Span) -> NoReturn:
        raise TypeError("what is compared is not kept")

    @contextmanager
    def writing(self, span: Span) -> Iterator[Sequence[memoryview]]:
        brought = bytearray(span.length)
        with memoryview(brought) as view:
            yield [view]
        with self._memory.reading(span) as views:
            held = b"".join(views)
        if held != brought:
            self.differing.append(self.layout.lying_in(span)[0])
