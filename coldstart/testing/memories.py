"""``BytesMemory``: a worker's memory made of bytearrays, for tests of transports without torch.

Every storage is a separate bytearray, so a span of it is many views, as awkward as memory gets;
padding exists nowhere. It counts what is lent out, so that a test can ask whether a transport
still touches it. The suites that use it are in ``transport_contract.py``.
"""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from coldstart.layout import Layout, Piece, Span, Tensor, chunk_bytes_for
from coldstart.ports import Region


def layout_of(*sizes: int, chunk_bytes: int = 0) -> Layout:
    """A layout with one uint8 tensor per storage size."""
    layout = Layout(
        tensors=tuple(
            Tensor(name=f"t{index}", dtype="uint8", shape=(size,), stride=(1,), storage=index, offset=0)
            for index, size in enumerate(sizes)
        ),
        storages=sizes,
        chunk_bytes=chunk_bytes or chunk_bytes_for(sum(sizes)),
    )
    return layout


class BytesMemory:
    """``ports.Memory`` over bytearrays.

    Args:
        layout: what it holds.
        seed: random content; without a seed every byte is ``fill``.
    """

    device = "cpu"

    def __init__(self, layout: Layout, *, seed: int | None = None, fill: int = 0) -> None:
        self.layout = layout
        self.storages = [
            bytearray([fill]) * size if seed is None else bytearray(random.Random(seed + index).randbytes(size))
            for index, size in enumerate(layout.storages)
        ]
        self._lock = threading.Lock()
        self._lent = 0

    @property
    def lent(self) -> int:
        """Spans that somebody reads or writes at this moment."""
        with self._lock:
            return self._lent

    def regions(self, span: Span) -> Sequence[Region]:
        """One region per storage that ``span`` touches; padding has no memory behind it."""
        return [
            Region(
                device="cpu",
                address=ctypes.addressof(ctypes.c_char.from_buffer(self.storages[piece.storage])) + piece.within,
                length=piece.length,
                offset=piece.offset,
            )
            for piece in self.layout.pieces(span)
        ]

    @contextmanager
    def reading(self, span: Span) -> Iterator[Sequence[memoryview]]:
        """The storages in place, read-only, with zeros between them."""
        with self._counted():
            yield [
                memoryview(bytes(part)) if isinstance(part, int) else self._view(part).toreadonly()
                for part in self._parts(span)
            ]

    @contextmanager
    def writing(self, span: Span) -> Iterator[Sequence[memoryview]]:
        """The storages in place, with scratch between them."""
        with self._counted():
            yield [
                memoryview(bytearray(part)) if isinstance(part, int) else self._view(part)
                for part in self._parts(span)
            ]

    def content(self, span: Span | None = None) -> bytes:
        """The bytes of ``span`` (everything by default); padding reads as zeros."""
        with self.reading(span or Span(0, self.layout.nbytes)) as views:
            return b"".join(views)

    def _view(self, piece: Piece) -> memoryview:
        return memoryview(self.storages[piece.storage])[piece.within : piece.within + piece.length]

    def _parts(self, span: Span) -> Iterator[Piece | int]:
        """Pieces of storages, and the lengths of the padding around them."""
        if span.offset < 0 or span.length < 0 or span.end > self.layout.nbytes:
            raise ValueError(f"span of {span.length} bytes at {span.offset} is outside {self.layout.nbytes} bytes")
        position = span.offset
        for piece in self.layout.pieces(span):
            if piece.offset > position:
                yield piece.offset - position
            yield piece
            position = piece.offset + piece.length
        if span.end > position:
            yield span.end - position

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            self._lent += 1
        try:
            yield
        finally:
            with self._lock:
                self._lent -= 1
