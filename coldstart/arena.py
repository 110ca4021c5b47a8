"""The arena: one allocation per device that holds a module's carried tensors in layout order.

Decides how the memory is allocated, lent to transports, and left behind when a late writer may
still reach it. No arena starts with anybody's old weights in it, which a transport that writes
nothing could pass off as new: host memory is a fresh mapping, which reads as zeros, and device
memory, which the allocator may have recycled, is filled with :data:`POISON`. What proves that
every byte was written is the digest. Host code reaches device memory through pinned buffers.

This module must not know modules (``skeletons/adoption.py`` moves them here), where bytes come
from (``transports/``) or whether they are right (``digest.py``).
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch

from coldstart.driver import apart_from_captures
from coldstart.errors import ConfigError
from coldstart.layout import ALIGNMENT, Layout, Span, Tensor
from coldstart.ports import Region
from coldstart.streams import OwnStream, await_default

POISON = 0xFF
"""NaN in every IEEE float and in most float8, -1 in integers."""

FRESH = 0
"""What new host memory holds. Filling it too would touch every page once more than needed: measured
on 1 GiB, that was up to a third of a whole cold start."""

STAGING_BYTES = 8 * 1024 * 1024
"""Transports move spans of at most this size; a larger one gets a buffer that is not kept."""

STAGING_KEPT = 16
"""Idle pinned buffers kept for reuse: pinning memory costs milliseconds."""

_ZEROS = memoryview(bytes(ALIGNMENT))


class Arena:
    """One worker's carried bytes; implements :class:`coldstart.ports.Memory`.

    Args:
        layout: what the arena holds; its stream is the arena, byte for byte.
        device: ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        ConfigError: another kind of device, or not enough memory on it.
    """

    def __init__(self, layout: Layout, device: str) -> None:
        self._layout = layout
        self._device = device_of(device)
        self._lock = threading.Lock()
        self._retired: list[torch.Tensor] = []
        self._adopted: list[tuple[torch.Tensor, Tensor]] = []
        self._staging = Staging(self._device) if self._device.type == "cuda" else None
        self._flat, self._lent = _allocate(layout.nbytes, self._device)

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def device(self) -> str:
        return str(self._device)

    def regions(self, span: Span) -> Sequence[Region]:
        """One region: the arena is flat. Padding inside it holds anything."""
        self._check(span)
        return (Region(self.device, self._flat.data_ptr() + span.offset, span.length, span.offset),)

    def resident(self, span: Span) -> Sequence[tuple[int, torch.Tensor]]:
        """The parts of ``span`` that hold weights: stream offset and 1-d uint8 tensor, in order.

        Storages without padding between them are one part.
        """
        self._check(span)
        flat = self._flat
        return [(run.offset, flat[run.offset : run.end]) for run in self._layout.weights(span)]

    def view(self, tensor: Tensor) -> torch.Tensor:
        """The tensor of the layout as it lies in the arena."""
        dtype = getattr(torch, tensor.dtype)
        if tensor.storage < 0:
            return torch.empty_strided(tensor.shape, tensor.stride, dtype=dtype, device=self._device)
        offset = self._layout.starts[tensor.storage] + tensor.offset
        storage = self._flat.untyped_storage()
        return torch.empty(0, dtype=dtype, device=self._device).set_(
            storage, offset // dtype.itemsize, tensor.shape, tensor.stride
        )

    def settle(self) -> None:
        """See ``ports.Settling``."""
        await_default(self._device)

    def reading(self, span: Span) -> AbstractContextManager[Sequence[memoryview]]:
        """See :meth:`coldstart.ports.Memory.reading`; on a CPU views of the arena, read-only."""
        self._check(span)
        return self._reading_host(span) if self._staging is None else self._reading_device(span, self._staging)

    def writing(self, span: Span) -> AbstractContextManager[Sequence[memoryview]]:
        """See :meth:`coldstart.ports.Memory.writing`; on a CPU one view of the arena, padding included."""
        self._check(span)
        return self._writing_host(span) if self._staging is None else self._writing_device(span, self._staging)

    @contextmanager
    def _reading_host(self, span: Span) -> Iterator[Sequence[memoryview]]:
        lent = self._lent
        views: list[memoryview] = []
        for part, holds_weights in self._parts(span):
            views.append(lent[part.offset : part.end].toreadonly() if holds_weights else _ZEROS[: part.length])
        yield views

    @contextmanager
    def _writing_host(self, span: Span) -> Iterator[Sequence[memoryview]]:
        yield [self._lent[span.offset : span.end]]

    @contextmanager
    def _reading_device(self, span: Span, staging: Staging) -> Iterator[Sequence[memoryview]]:
        with staging.buffer(span.length) as buffer:
            buffer.fetch([(0, self._flat[span.offset : span.end])])
            for part, holds_weights in self._parts(span):
                if not holds_weights:
                    buffer.host[part.offset - span.offset : part.end - span.offset] = _ZEROS[: part.length]
            yield [buffer.host.toreadonly()]

    @contextmanager
    def _writing_device(self, span: Span, staging: Staging) -> Iterator[Sequence[memoryview]]:
        flat = self._flat
        with staging.buffer(span.length) as buffer:
            yield [buffer.host]
            buffer.store(flat[span.offset : span.end])

    def _parts(self, span: Span) -> Iterator[tuple[Span, bool]]:
        """``span`` as alternating runs of weights (true) and padding (false), in order."""
        at = span.offset
        for run in self._layout.weights(span):
            if run.offset > at:
                yield Span(at, run.offset - at), False
            yield run, True
            at = run.end
        if span.end > at:
            yield Span(at, span.end - at), False

    def quarantine(self, keep: Iterable[Span] = ()) -> None:
        """Leave the present memory to whatever may still write into it, and move to fresh memory.

        The old memory stays allocated as long as this arena lives. Carried tensors point into
        the new memory, which holds nothing of use except for ``keep``: those spans are copied, and must
        be verified again because the late writer may have been faster than the copy.

        Raises:
            ConfigError: no room for a second arena.
        """
        with self._lock, torch.no_grad(), torch.inference_mode(False):
            old = self._flat
            flat, lent = _allocate(self._layout.nbytes, self._device)
            for span in keep:
                self._check(span)
                flat[span.offset : span.end] = old[span.offset : span.end]
            settle(self._device)
            self._retired.append(old)
            self._flat, self._lent = flat, lent
            for tensor, placed in self._adopted:
                if placed.storage >= 0:
                    tensor.data = self.view(placed)

    def adopted(self, tensor: torch.Tensor, placed: Tensor) -> None:
        """Remember that the module's ``tensor`` is the arena's ``placed`` (for :meth:`quarantine`)."""
        self._adopted.append((tensor, placed))

    def held(self) -> Sequence[tuple[torch.Tensor, Tensor]]:
        """The module's tensors that lie here, and their places."""
        return tuple(self._adopted)

    def address(self, placed: Tensor) -> int:
        """Where a tensor of the layout that has bytes lies, in bytes."""
        return self._flat.data_ptr() + self._layout.starts[placed.storage] + placed.offset

    def _check(self, span: Span) -> None:
        if span.offset < 0 or span.length < 0 or span.end > self._layout.nbytes:
            raise ValueError(f"bytes {span.offset} to {span.end} are outside the arena of {self._layout.nbytes}")


# -------------------------------------------------------------------------------- allocation


def device_of(name: str) -> torch.device:
    """The device called ``name``, with its index; raises ConfigError if there is no arena for it."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"there is no device {name!r}", advice="use cpu or cuda:N") from error
    if device.type == "cpu":
        if device.index:
            raise ConfigError(f"there is no device {name!r}", advice="a host has one memory: use cpu")
        return torch.device("cpu")
    if device.type != "cuda":
        raise ConfigError(f"device {name!r} is not supported", advice="use cpu or cuda:N")
    if not torch.cuda.is_available():
        raise ConfigError(f"device {name!r} was asked for but torch sees no CUDA device here")
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise ConfigError(f"device {name!r} was asked for but torch sees {count} CUDA devices here")
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)


def _allocate(nbytes: int, device: torch.device) -> tuple[torch.Tensor, memoryview]:
    """Memory without old weights: a 1-d uint8 tensor and, for the CPU, the same bytes as a memoryview."""
    lent = memoryview(b"")
    try:
        if device.type == "cpu":
            # An anonymous mapping is page-aligned, and huge pages halve the cost of touching it first.
            pages = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                pages.madvise(mmap.MADV_HUGEPAGE)
            lent = memoryview(pages)[:nbytes]
            flat = torch.frombuffer(pages, dtype=torch.uint8)[:nbytes]
        else:
            flat = torch.full((nbytes,), POISON, dtype=torch.uint8, device=device)
    except (OSError, torch.OutOfMemoryError) as error:
        raise ConfigError(
            f"no room for {nbytes / 1e9:.2f} GB of weights on {device}: {error}",
            advice="free memory there or choose another device",
        ) from error
    settle(device)
    return flat, lent


def settle(device: torch.device) -> None:
    """Wait until everything queued on the current stream is done: other streams write next."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


# ----------------------------------------------------------------------------------- staging


class _Buffer:
    """One pinned buffer of ``length`` bytes; its own stream, so that it never waits for the model's work."""

    def __init__(self, length: int, device: torch.device) -> None:
        self._pinned = torch.empty(length, dtype=torch.uint8, pin_memory=True)
        self._own = OwnStream(device)
        self._stream = self._own.stream
        self._all = self._pinned.numpy().data
        self.capacity = length
        self.host = self._all

    def cut(self, length: int) -> None:
        """Show only the first ``length`` bytes as :attr:`host`."""
        self.host = self._all[:length]

    def fetch(self, parts: Iterable[tuple[int, torch.Tensor]]) -> None:
        """Copy device bytes into :attr:`host`, each part to its place; returns when they are there."""
        with apart_from_captures("cuda"):
            with torch.cuda.stream(self._stream):
                for at, memory in parts:
                    self._pinned[at : at + memory.numel()].copy_(memory, non_blocking=True)
            self._stream.synchronize()

    def store(self, memory: torch.Tensor) -> None:
        """Copy :attr:`host` into device bytes; returns when they are there."""
        with torch.cuda.stream(self._stream):
            memory.copy_(self._pinned[: memory.numel()], non_blocking=True)
        self._stream.synchronize()


class Staging:
    """The pinned buffers of one device. Any thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._idle: list[_Buffer] = []

    @contextmanager
    def buffer(self, length: int) -> Iterator[_Buffer]:
        """A buffer that shows ``length`` bytes, ours until the block ends."""
        with self._lock:
            fits = length <= STAGING_BYTES and self._idle
            found = self._idle.pop() if fits else None
        if found is None:
            with apart_from_captures("cuda"):
                found = _Buffer(max(length, STAGING_BYTES), self._device)
        buffer = found
        buffer.cut(length)
        try:
            yield buffer
        finally:
            with self._lock:
                if buffer.capacity == STAGING_BYTES and len(self._idle) < STAGING_KEPT:
                    self._idle.append(buffer)
