"""The digest's row sums where the memory is, on a device.

Decides how the y of ``csfp1.py`` are computed by a kernel or by torch's operators, and that this costs
the host little and nobody else anything: each call works on a stream and buffers of its own, queues
everything that it was asked for, and waits for that stream once. Rows are hashed in place; the little gaps
between storages, which hold anything, are read with them and taken out of the sums again. It must not know
memories.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from coldstart.csfp1 import KEYS, LANES, ROW_BYTES, ROW_WORDS, row_count
from coldstart.layout import Span, gaps
from coldstart.streams import OwnStream

Piece = tuple[int, torch.Tensor]
"""Offset in the stream, and the bytes that lie there: 1-d uint8."""

AddRows = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], None]
"""Adds the y of words, int32 of (rows, words of a row), to sums, int64 of (rows, lanes), from a row on."""

OPERATOR_ROWS = 64
"""Rows that torch's operators hash at a time: 16 MiB of weights, 64 MiB of temporaries."""

GAP_WORDS = 64
"""Longest gap between storages that is read and taken out again; longer ones are not read."""

VECTOR_BYTES = 16
"""Rows that begin on a multiple of this are hashed in place: one compiled kernel serves them all."""

KEPT_ROWS = 16_384
"""Rows that a workspace is made for, 4 GiB of weights; more get buffers that are not kept."""

KEPT_WORKSPACES = 8


class Gap(NamedTuple):
    """Words of a span from ``first`` to ``end``, of which the lowest ``kept`` bytes of the first one count."""

    first: int
    end: int
    kept: int


class Run(NamedTuple):
    """Pieces of one allocation, with the gaps between them, as one piece."""

    offset: int
    tensor: torch.Tensor
    gaps: list[Gap]


def sums_on_device(parts: Sequence[tuple[Sequence[Piece], Span]], device: torch.device) -> NDArray[np.int64]:
    """y of several spans, one after the other: int64 of shape (lanes, rows). Blocks.

    Each part is a span and the pieces that lie in it, in order; what no piece covers counts as zeros.
    """
    keys, add_rows = keys_on(device), fastest(device)
    counts = [row_count(span.length) for _, span in parts]
    with _workspaces(device).lent(sum(counts)) as workspace:
        with workspace.working(sum(counts)) as sums:
            first = 0
            for (pieces, span), count in zip(parts, counts, strict=True):
                _add_span(pieces, span, keys, sums, first, add_rows)
                first += count
        return workspace.fetch(first)


def prepare(device: torch.device) -> None:
    """Compile, upload and allocate what :func:`sums_on_device` needs; takes seconds where a kernel is compiled."""
    with _workspaces(device).lent(1), _workspaces(device).lent(1):
        pass
    sample = torch.zeros(2 * ROW_BYTES, dtype=torch.uint8, device=device)
    pieces = [(0, sample[: ROW_BYTES // 2 - 8]), (ROW_BYTES // 2, sample[ROW_BYTES // 2 : -64])]
    sums_on_device([(pieces, Span(0, 2 * ROW_BYTES - 64))], device)


# ------------------------------------------------------------------------------------- one span


def _add_span(
    pieces: Sequence[Piece], span: Span, keys: torch.Tensor, sums: torch.Tensor, first: int, add_rows: AddRows
) -> None:
    """Rows that lie inside one run are hashed in place, the others are put together first."""
    done: list[Span] = []
    for run in _runs(pieces, span):
        start = run.offset - span.offset
        low, high = max(0, -(-start // ROW_BYTES)), min(start + run.tensor.numel(), span.length) // ROW_BYTES
        inside = low * ROW_BYTES - start
        if low < high and _is_aligned(run.tensor, inside):
            words = run.tensor[inside : inside + (high - low) * ROW_BYTES].view(torch.int32)
            read = [gap for gap in run.gaps if low <= gap.first // ROW_WORDS < high]
            if read:  # first, because it waits for a little copy to the device
                _take_out(read, words, low, keys, sums, first)
            add_rows(words.view(-1, ROW_WORDS), keys, sums, first + low)
            done.append(Span(low, high - low))
    for rows in gaps(done, Span(0, row_count(span.length))):
        add_rows(_put_together(pieces, span, rows, sums.device), keys, sums, first + rows.offset)


def _is_aligned(tensor: torch.Tensor, at: int) -> bool:
    return (tensor.storage_offset() + at) % 4 == 0 and (tensor.data_ptr() + at) % VECTOR_BYTES == 0


def _runs(pieces: Sequence[Piece], span: Span) -> Iterator[Run]:
    """The pieces, joined over gaps that can be taken out."""
    if not pieces:
        return
    offset, tensor = pieces[0]
    end, between = offset + tensor.numel(), list[Gap]()
    for next_offset, next_tensor in pieces[1:]:
        gap = _gap(end - span.offset, next_offset - span.offset)
        if gap is None or not _lie_alike(offset, tensor, next_offset, next_tensor):
            yield _run(offset, tensor, end, between)
            offset, tensor, between = next_offset, next_tensor, []
        else:
            between.append(gap)
        end = next_offset + next_tensor.numel()
    yield _run(offset, tensor, end, between)


def _run(offset: int, tensor: torch.Tensor, end: int, between: list[Gap]) -> Run:
    joined = tensor.as_strided((end - offset,), (1,), tensor.storage_offset()) if between else tensor
    return Run(offset, joined, between)


def _gap(start: int, stop: int) -> Gap | None:
    """The gap between two bytes of a span, or None for one that is long, ends inside a word or crosses rows."""
    first, end = start // 4, stop // 4
    if stop % 4 or end - first > GAP_WORDS or start // ROW_BYTES != (stop - 1) // ROW_BYTES:
        return None
    return Gap(first, end, start % 4)


def _lie_alike(offset: int, tensor: torch.Tensor, other_offset: int, other: torch.Tensor) -> bool:
    """Whether two pieces are as far from each other in one allocation as they are in the stream."""
    return (
        tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
        and other.storage_offset() - tensor.storage_offset() == other_offset - offset
    )


def _take_out(
    between: Sequence[Gap], words: torch.Tensor, low: int, keys: torch.Tensor, sums: torch.Tensor, first: int
) -> None:
    """Subtract from ``sums`` what the gaps add: sums are linear in the words.

    ``words`` begin with row ``low`` of the span, whose row 0 is row ``first`` of ``sums``.
    """
    table = torch.tensor(between, dtype=torch.int64, device=words.device)
    start, stop, kept = table[:, :1], table[:, 1:2], table[:, 2:]
    at = start + torch.arange(GAP_WORDS, device=words.device)
    counts, at = at < stop, torch.minimum(at, stop - 1)
    found = words[at - low * ROW_WORDS].to(torch.int64)
    kept_bits = torch.where(at == start, (1 << 8 * kept) - 1, 0)
    surplus = (found - (found & kept_bits)) * counts
    rows = first + start[:, 0] // ROW_WORDS
    for lane in range(LANES):
        sums[:, lane].index_add_(0, rows, (surplus * keys[lane][at % ROW_WORDS]).sum(1), alpha=-1)


def _put_together(pieces: Sequence[Piece], span: Span, rows: Span, device: torch.device) -> torch.Tensor:
    """The words of neighbouring rows, copied from the pieces they lie in: int32 of (rows, words of a row)."""
    staged = torch.zeros(rows.length * ROW_BYTES, dtype=torch.uint8, device=device)
    start = span.offset + rows.offset * ROW_BYTES
    stop = min(start + rows.length * ROW_BYTES, span.end)
    for offset, tensor in pieces:
        low, high = max(offset, start), min(offset + tensor.numel(), stop)
        if low < high:
            staged[low - start : high - start] = tensor[low - offset : high - offset]
    return staged.view(torch.int32).view(-1, ROW_WORDS)


# ------------------------------------------------------------------------- kernel, or operators


def by_operators(words: torch.Tensor, keys: torch.Tensor, sums: torch.Tensor, first: int) -> None:
    """An :data:`AddRows` for every device."""
    for start in range(0, words.shape[0], OPERATOR_ROWS):
        wide = words[start : start + OPERATOR_ROWS].to(torch.int64)
        for lane in range(LANES):
            sums[first + start : first + start + wide.shape[0], lane] += torch.sum(wide * keys[lane], 1)


def by_kernel(words: torch.Tensor, keys: torch.Tensor, sums: torch.Tensor, first: int) -> None:
    """The same by one fused kernel on the current stream; raises whatever Triton raises where it cannot.

    The current device must be that of the words.
    """
    from coldstart import kernels

    kernels.add_rows[(words.shape[0], kernels.PARTS)](
        words, keys, sums, first, ROW_WORDS, kernels.PARTS, kernels.BLOCK
    )


_choosing = threading.Lock()


def fastest(device: torch.device) -> AddRows:
    """The kernel where it runs and agrees with torch's operators; operators everywhere else.

    Compiled once: who comes meanwhile waits for it.
    """
    with _choosing:
        return _fastest(device)


@cache
def _fastest(device: torch.device) -> AddRows:
    if device.type != "cuda":
        return by_operators
    keys = keys_on(device)
    sample = keys.view(torch.int32).view(-1, ROW_WORDS)
    found = torch.zeros((2, sample.shape[0], LANES), dtype=torch.int64, device=device)
    try:
        with torch.cuda.device(device):
            by_kernel(sample, keys, found[0], 0)
            by_operators(sample, keys, found[1], 0)
            agreed = torch.equal(found[0], found[1])
    except Exception:  # no Triton, no compiler, an architecture it does not know: all mean the same here
        return by_operators
    return by_kernel if agreed else by_operators


@cache
def keys_on(device: torch.device) -> torch.Tensor:
    """K on a device, there when this returns: it is used on other streams."""
    keys = torch.from_numpy(KEYS.copy()).to(device)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    return keys


# ------------------------------------------------------------------------------------ workspaces


_event: Callable[[], torch.cuda.Event] = torch.cuda.Event  # typed here because torch leaves it untyped


class _Workspace:
    """What one call at a time works with: sums on the device, where they go on the host, a stream of its own."""

    def __init__(self, device: torch.device, rows: int) -> None:
        self._device, self.rows = device, rows
        self._own = OwnStream(device) if device.type == "cuda" else None
        self._stream = None if self._own is None else self._own.stream
        self._before = None if self._own is None else _event()
        with self._context(), torch.inference_mode(False):  # else nobody outside could write into it
            self._sums = torch.empty((rows, LANES), dtype=torch.int64, device=device)
            self._host = torch.empty((rows, LANES), dtype=torch.int64, pin_memory=self._stream is not None)

    def _context(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    @contextmanager
    def working(self, rows: int) -> Iterator[torch.Tensor]:
        """Lends the first ``rows`` sums, zeros; what the block does is queued on the stream.

        It comes after all that is queued on the device's default stream now, where weights may just be changing.
        """
        if self._stream is not None and self._before is not None:
            self._before.record(torch.cuda.default_stream(self._device))
            self._stream.wait_event(self._before)
        with self._context():
            sums = self._sums[:rows].zero_()
            yield sums
            self._host[:rows].copy_(sums, non_blocking=True)

    def fetch(self, rows: int) -> NDArray[np.int64]:
        """The first ``rows`` sums once they are on the host: (lanes, rows)."""
        if self._stream is not None:
            self._stream.synchronize()
        return np.ascontiguousarray(self._host[:rows].numpy().T)


class _Workspaces:
    """The workspaces of one device. Any thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._idle: list[_Workspace] = []

    @contextmanager
    def lent(self, rows: int) -> Iterator[_Workspace]:
        """A workspace for ``rows``, ours until the block ends. One that broke off is not used again."""
        with self._lock:
            found = self._idle.pop() if rows <= KEPT_ROWS and self._idle else None
        workspace = found or _Workspace(self._device, max(rows, KEPT_ROWS))
        yield workspace
        with self._lock:
            if workspace.rows == KEPT_ROWS and len(self._idle) < KEPT_WORKSPACES:
                self._idle.append(workspace)


@cache
def _workspaces(device: torch.device) -> _Workspaces:
    return _Workspaces(device)
