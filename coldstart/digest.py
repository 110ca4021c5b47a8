"""Digests: 128 bits over every byte of a chunk, the same number on every device.

Decides what "these are the right bytes" means (algorithm ``csfp1``). A span is read as
little-endian signed 32-bit words w, counted from the span's first byte, in rows of 65,536
words (256 KiB); the last word is filled up with zeros. All arithmetic is modulo 2**64::

    y[lane, row] = sum over c of w[row, c] * K[lane, c]
    H[lane]      = sum over rows of mix(y[lane, row] ^ mix(s[lane] + (row + 1) * GOLD))
    D[lane]      = mix(H[lane] ^ mix(length + lane + 1))

K holds odd keys, s one seed a lane, both from SHAKE-128; mix is the 64-bit finaliser of
MurmurHash3, a bijection. Odd keys mean that a change of one word never vanishes; 32-bit words
in 64-bit sums mean that two changes of high bits do not cancel, which they do in every sum
over 64-bit words. Sums are linear inside a row, so a row may arrive in pieces; rows may be
summed in any order. Gaps between storages count as zeros and are never read.

A public key table makes this a check against damage, not against somebody who chooses bytes
to collide: truth must come from a worker that read storage. This module must not know what
the bytes mean nor where truth is kept (``identity.py``). The memory is in ``arena.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from coldstart.errors import IntegrityError
from coldstart.layout import Span
from coldstart.ports import Memory

ALGORITHM = "csfp1"

RowSums = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

LANES = 2
ROW_WORDS = 65_536
ROW_BYTES = 4 * ROW_WORDS

GOLD: NDArray[np.uint64] = np.array([0x9E3779B97F4A7C15], np.uint64)

BLOCK_WORDS = 16_384
GROUP_ROWS = 32
"""The CPU goes through 32 rows one quarter at a time, so that the keys stay in its second-level cache."""

DEVICE_ROWS = 64
"""Rows that torch's operators hash at a time: 16 MiB of weights, 64 MiB of temporaries."""

_TABLE = hashlib.shake_128(ALGORITHM.encode()).digest(8 * LANES * (ROW_WORDS + 1))
_RAW: NDArray[np.uint64] = np.frombuffer(_TABLE, dtype="<u8")

KEYS: NDArray[np.int64] = (_RAW[: LANES * ROW_WORDS] | np.uint64(1)).view(np.int64).reshape(LANES, ROW_WORDS)
"""K: odd, as signed 64-bit numbers, (lanes, words of a row)."""

SEEDS: NDArray[np.uint64] = _RAW[LANES * ROW_WORDS :].reshape(LANES, 1)
"""s: one number a lane, (lanes, 1)."""


@runtime_checkable
class Resident(Protocol):
    """Memory that can show its bytes as tensors where they lie (:class:`coldstart.arena.Arena`)."""

    def resident(self, span: Span) -> Sequence[tuple[int, torch.Tensor]]:
        """The parts of ``span`` that hold weights: stream offset and 1-d uint8 tensor, in order."""
        ...


class ChunkDigester:
    """Digests of CPU memory by numpy, of other memory where it lies, by a kernel or torch operators.

    On a CPU one call uses one core, without the interpreter lock and with 8 MiB of temporaries
    at most, so that several chunks can be hashed in several threads: about 3 GB/s each.
    """

    @property
    def algorithm(self) -> str:
        return ALGORITHM

    def prepare(self, device: str) -> None:
        """Make ready what digests on ``device`` need: up to seconds, where a kernel is compiled.

        Blocks; call it in a thread while there is nothing to hash yet. Digests work without it.
        """
        if device != "cpu":
            _fastest(torch.device(device))

    def digest(self, memory: Memory, span: Span) -> bytes:
        """16 bytes over every byte of ``span``; lane 0 first, each little-endian.

        Raises:
            IntegrityError: the memory lent more or fewer bytes than the span has.
        """
        if memory.device != "cpu" and isinstance(memory, Resident):
            return finish(sums_on_device(memory.resident(span), span, torch.device(memory.device)), span.length)
        with memory.reading(span) as views:
            lent = sum(view.nbytes for view in views)
            if lent != span.length:
                raise IntegrityError(f"memory lent {lent} bytes for the {span.length} bytes at {span.offset}")
            return finish(sums_of_views(views, span.length), span.length)


def sums_of_views(views: Sequence[memoryview], length: int) -> NDArray[np.int64]:
    """y of ``length`` bytes that ``views`` hold together: int64 of shape (lanes, rows)."""
    # numpy's integer dot product is scalar, but it needs no temporaries and is never worse than digits of
    # words and keys in exact float64 matrix products, which gain nothing once the words come from memory.
    sums = np.zeros((LANES, _row_count(length)), np.int64)
    scratch = np.empty(BLOCK_WORDS, np.int64)
    rows = _rows(views)
    done = 0
    while group := list(islice(rows, GROUP_ROWS)):
        part = np.zeros((LANES, len(group)), np.int64)
        for start in range(0, ROW_WORDS, BLOCK_WORDS):
            for row, words in enumerate(group):
                block = words[start : start + BLOCK_WORDS]
                wide = scratch[: block.size]
                np.copyto(wide, block)
                for lane in range(LANES):
                    part[lane, row] = wide.dot(KEYS[lane, start : start + block.size])
            sums[:, done : done + len(group)] += part
        done += len(group)
    return sums


def _rows(views: Sequence[memoryview]) -> Iterator[NDArray[np.int32]]:
    """The words of each row: in place where a view holds the whole row, else collected."""
    collected = bytearray()
    for any_view in views:
        view = any_view.cast("B")
        at = min(ROW_BYTES - len(collected), len(view)) if collected else 0
        collected += view[:at]
        if len(collected) == ROW_BYTES:
            yield np.frombuffer(collected, "<i4")
            collected = bytearray()
        while len(view) - at >= ROW_BYTES:
            yield np.frombuffer(view[at : at + ROW_BYTES], "<i4")
            at += ROW_BYTES
        collected += view[at:]
    if collected:
        collected += bytes(-len(collected) % 4)
        yield np.frombuffer(collected, "<i4")


def sums_on_device(
    pieces: Sequence[tuple[int, torch.Tensor]], span: Span, device: torch.device
) -> NDArray[np.int64]:
    """y of ``span``, computed on ``device``: int64 of shape (lanes, rows).

    ``pieces`` are stream offsets and 1-d uint8 tensors; what no piece covers counts as zeros.
    Rows that lie inside one piece are hashed in place, the others are put together first.
    """
    keys, row_sums = _keys_on(device), _fastest(device)
    sums = torch.zeros((LANES, _row_count(span.length)), dtype=torch.int64, device=device)
    split = set(range(sums.shape[1]))
    for offset, tensor in pieces:
        start = offset - span.offset
        first, end = max(0, -(-start // ROW_BYTES)), min(start + tensor.numel(), span.length) // ROW_BYTES
        inside = first * ROW_BYTES - start
        if first < end and (tensor.storage_offset() + inside) % 4 == 0:
            rows = tensor[inside : inside + (end - first) * ROW_BYTES]
            sums[:, first:end] = row_sums(rows.view(torch.int32).view(-1, ROW_WORDS), keys)
            split -= set(range(first, end))
    if split:
        where = sorted(split)
        sums[:, where] = row_sums(_put_together(pieces, span, where, device), keys)
    return sums.cpu().numpy()


def _put_together(
    pieces: Sequence[tuple[int, torch.Tensor]], span: Span, rows: Sequence[int], device: torch.device
) -> torch.Tensor:
    """The words of some rows, copied from the pieces they lie in: int32 of shape (rows, words of a row)."""
    staged = torch.zeros((len(rows), ROW_BYTES), dtype=torch.uint8, device=device)
    for index, row in enumerate(rows):
        start = span.offset + row * ROW_BYTES
        stop = min(start + ROW_BYTES, span.end)
        for offset, tensor in pieces:
            low, high = max(offset, start), min(offset + tensor.numel(), stop)
            if low < high:
                staged[index, low - start : high - start] = tensor[low - offset : high - offset]
    return staged.view(torch.int32)


def by_operators(words: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """y of ``words``, int32 of shape (rows, words of a row): int64 of shape (lanes, rows). Any device."""
    sums = torch.empty((LANES, words.shape[0]), dtype=torch.int64, device=words.device)
    for start in range(0, words.shape[0], DEVICE_ROWS):
        wide = words[start : start + DEVICE_ROWS].to(torch.int64)
        for lane in range(LANES):
            torch.sum(wide * keys[lane], 1, out=sums[lane, start : start + DEVICE_ROWS])
    return sums


def by_kernel(words: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """The same from one fused kernel; raises whatever Triton raises where it cannot."""
    from coldstart import kernels

    sums = torch.zeros((LANES, words.shape[0]), dtype=torch.int64, device=words.device)
    with torch.cuda.device(words.device):
        kernels.add_rows[(words.shape[0], kernels.PARTS)](
            words, keys, sums, words.shape[0], ROW_WORDS, kernels.PARTS, kernels.BLOCK
        )
    return sums


@cache
def _fastest(device: torch.device) -> RowSums:
    """The kernel where it runs and agrees with torch's operators; operators everywhere else."""
    if device.type != "cuda":
        return by_operators
    keys = _keys_on(device)
    sample = keys.view(torch.int32).view(-1, ROW_WORDS)
    try:
        agreed = torch.equal(by_kernel(sample, keys), by_operators(sample, keys))
    except Exception:  # no Triton, no compiler, an architecture it does not know: all mean the same here
        return by_operators
    return by_kernel if agreed else by_operators


@cache
def _keys_on(device: torch.device) -> torch.Tensor:
    return torch.from_numpy(KEYS.copy()).to(device)


def finish(sums: NDArray[np.int64], length: int) -> bytes:
    """The digest of a span of ``length`` bytes from its y, int64 of shape (lanes, rows)."""
    rows: NDArray[np.uint64] = np.arange(1, sums.shape[1] + 1, dtype=np.uint64)
    mixed = _mix(sums.view(np.uint64) ^ _mix(SEEDS + rows * GOLD))
    folded: NDArray[np.uint64] = np.sum(mixed, axis=1, dtype=np.uint64)
    ending: NDArray[np.uint64] = np.arange(length + 1, length + 1 + LANES, dtype=np.uint64)
    return _mix(folded ^ _mix(ending)).astype("<u8").tobytes()


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    x = (x ^ (x >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return x ^ (x >> np.uint64(33))


def _row_count(length: int) -> int:
    return -(-length // ROW_BYTES)
