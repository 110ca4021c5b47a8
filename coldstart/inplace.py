"""Carried tensors where somebody else put them: a source's memory without an arena.

Decides how scattered storages read as one stream, for engines that load their weights by
themselves and only lend them. Read-only: a joiner's target is always an arena (``arena.py``).
It must not know modules, nor whether the bytes are right (``digest.py``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NoReturn

import torch

from coldstart.arena import Staging, settle
from coldstart.errors import SkeletonError
from coldstart.layout import ALIGNMENT, Layout, Piece, Span, Tensor
from coldstart.ports import Region
from coldstart.streams import await_default

_ZEROS = bytes(ALIGNMENT)


class InPlace:
    """Storages of a loaded module; implements :class:`coldstart.ports.Memory` for reading.

    Args:
        layout: the stream that the storages make.
        tensors: the carried tensors by name, as the module holds them; their memory is kept alive.
        device: of all of them.
    """

    def __init__(self, layout: Layout, tensors: Mapping[str, torch.Tensor], device: torch.device) -> None:
        self._layout, self._tensors, self._device = layout, dict(tensors), device
        self._bytes = [_bytes_of(layout, index, tensors) for index in range(len(layout.storages))]
        self._addresses = [storage.data_ptr() for storage in self._bytes]
        self._staging = Staging(device) if device.type == "cuda" else None
        settle(device)

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def device(self) -> str:
        return str(self._device)

    def held(self) -> Sequence[tuple[torch.Tensor, Tensor]]:
        """The module's tensors, and their places."""
        return [(self._tensors[placed.name], placed) for placed in self._layout.tensors]

    def address(self, placed: Tensor) -> int:
        """Where a tensor of the layout that has bytes was found, in bytes."""
        return self._addresses[placed.storage] + placed.offset

    def regions(self, span: Span) -> Sequence[Region]:
        """One region per storage that ``span`` touches; padding has no memory behind it."""
        return [
            Region(self.device, self._addresses[piece.storage] + piece.within, piece.length, piece.offset)
            for piece in self._layout.pieces(span)
        ]

    def resident(self, span: Span) -> Sequence[tuple[int, torch.Tensor]]:
        """The parts of ``span`` that hold weights: stream offset and 1-d uint8 tensor, in order."""
        return [(piece.offset, self._part(piece)) for piece in self._layout.pieces(span)]

    def settle(self) -> None:
        """See ``ports.Settling``."""
        await_default(self._device)

    def reading(self, span: Span) -> AbstractContextManager[Sequence[memoryview]]:
        """See :meth:`coldstart.ports.Memory.reading`; on a CPU the storages in place."""
        return self._reading_host(span) if self._staging is None else self._reading_device(span, self._staging)

    def writing(self, span: Span) -> NoReturn:
        """Nobody writes into weights that another engine owns."""
        raise TypeError("memory of a loaded module is only lent")

    def quarantine(self, keep: Sequence[Span] = ()) -> NoReturn:
        """Nobody writes here, so nobody can write late."""
        raise TypeError("memory of a loaded module is never a target")

    @contextmanager
    def _reading_host(self, span: Span) -> Iterator[Sequence[memoryview]]:
        views: list[memoryview] = []
        at = span.offset
        for piece in self._layout.pieces(span):
            views.extend(_padding(piece.offset - at))
            address = self._addresses[piece.storage] + piece.within
            views.append(memoryview((ctypes.c_char * piece.length).from_address(address)).cast("B").toreadonly())
            at = piece.offset + piece.length
        views.extend(_padding(span.end - at))
        yield views

    @contextmanager
    def _reading_device(self, span: Span, staging: Staging) -> Iterator[Sequence[memoryview]]:
        with staging.buffer(span.length) as buffer:
            at = 0
            parts: list[tuple[int, torch.Tensor]] = []
            for offset, part in self.resident(span):
                parts.append((offset - span.offset, part))
                buffer.host[at : offset - span.offset] = bytes(offset - span.offset - at)
                at = offset - span.offset + part.numel()
            buffer.host[at:] = bytes(span.length - at)
            buffer.fetch(parts)
            yield [buffer.host.toreadonly()]

    def _part(self, piece: Piece) -> torch.Tensor:
        return self._bytes[piece.storage][piece.within : piece.within + piece.length]


def _bytes_of(layout: Layout, index: int, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The bytes of a storage of the layout, as they lie: 1-d uint8."""
    for placed in layout.tensors:
        if placed.storage == index:
            tensor = tensors[placed.name]
            start = int(tensor.storage_offset()) * tensor.itemsize - placed.offset
            memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            return memory.set_(tensor.untyped_storage(), start, (layout.storages[index],), (1,))
    raise SkeletonError(f"storage {index} of the layout has no tensor")


def _padding(nbytes: int) -> Iterator[memoryview]:
    while nbytes > 0:
        yield memoryview(_ZEROS)[:nbytes]
        nbytes -= len(_ZEROS)
