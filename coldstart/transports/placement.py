"""Whether a checkpoint holds a layout byte for byte, and where.

Decides, from names, dtypes, shapes and sizes alone, which bytes of which files are the content of
which storage; or says in words why there are none. A storage is one stored tensor, or is made of
ranges of several where the loader merges them (the experts of a layer, for one). Pure: it reads no
file and must not know torch. The bytes are read by ``storage.py``; where the answer is no, the
skeleton's own ``load`` is used.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import assert_never

import msgspec

from coldstart.layout import Layout, Piece, Tensor
from coldstart.ports import Checkpoint, StoredAs, StoredRange, Widened

FLOAT32, BFLOAT16 = 4, 2
"""Bytes of one number."""


class Extent(msgspec.Struct, frozen=True):
    """Consecutive bytes of a storage that are consecutive in a file.

    ``within`` is where they start in the storage, ``offset`` where in ``file``; all in bytes. Where ``widened``, the
    file has bfloat16 for float32: half as many bytes (``widening.py``).
    """

    within: int
    length: int
    file: Path
    offset: int
    widened: bool = False


class Placement(msgspec.Struct, frozen=True):
    """For each storage of a layout, in order, the extents that tile it."""

    storages: tuple[tuple[Extent, ...], ...]

    def located(self, piece: Piece) -> Iterator[Extent]:
        """The extents that make up ``piece``, cut to it, in order."""
        extents = self.storages[piece.storage]
        end = piece.within + piece.length
        for index in range(bisect_right(extents, piece.within, key=_within) - 1, len(extents)):
            extent = extents[index]
            if extent.within >= end:
                return
            skipped = max(piece.within - extent.within, 0)
            length = min(extent.within + extent.length, end) - extent.within - skipped
            at = extent.offset + (skipped // FLOAT32 * BFLOAT16 if extent.widened else skipped)
            yield Extent(extent.within + skipped, length, extent.file, at, extent.widened)


class Unplaced(msgspec.Struct, frozen=True):
    """Why a checkpoint cannot be read byte for byte into a layout."""

    reason: str


def place(layout: Layout, stored_names: Mapping[str, StoredAs], checkpoint: Checkpoint) -> Placement | Unplaced:
    """Find the stored bytes behind every storage.

    Args:
        layout: what is to be filled.
        stored_names: carried name to checkpoint name, or to ranges of stored tensors; aliases may be left out.
        checkpoint: whose headers say what there is.
    """
    views: list[list[Tensor]] = [[] for _ in layout.storages]
    for tensor in layout.tensors:
        if tensor.storage >= 0:
            views[tensor.storage].append(tensor)
    storages: list[tuple[Extent, ...]] = []
    for nbytes, tenants in zip(layout.storages, views, strict=True):
        found = _filling(nbytes, tenants, stored_names, checkpoint)
        if isinstance(found, Unplaced):
            return found
        storages.append(found)
    return Placement(tuple(storages))


def _filling(
    nbytes: int, tenants: Sequence[Tensor], stored_names: Mapping[str, StoredAs], checkpoint: Checkpoint
) -> tuple[Extent, ...] | Unplaced:
    """The extents that fill a storage, given all tensors that live in it."""
    found: dict[tuple[Extent, ...], str] = {}
    reasons: list[str] = []
    for tensor in tenants:
        stored_as = stored_names.get(tensor.name)
        if stored_as is None:
            continue
        if reason := _mismatch(tensor, nbytes, stored_as, checkpoint):
            reasons.append(reason)
        else:
            found.setdefault(_extents(stored_as, nbytes, checkpoint), _shown(stored_as))
    if len(found) > 1:
        several = ", ".join(sorted(found.values()))
        return Unplaced(f"{tenants[0].name}: one storage here, stored several times ({several})")
    if found:
        return next(iter(found))
    names = tenants[0].name if tenants else "a storage without tensors"
    return Unplaced(reasons[0] if reasons else f"{names}: not mapped to a tensor of the checkpoint")


def _mismatch(tensor: Tensor, nbytes: int, stored_as: StoredAs, checkpoint: Checkpoint) -> str:
    """Why the stored bytes are not those of the whole storage of ``tensor``; empty if they are."""
    for name in named(stored_as):
        stored = checkpoint.tensors.get(name)
        if stored is None:
            return f"{tensor.name}: the checkpoint has no tensor {name}"
        widened = isinstance(stored_as, Widened) and (stored.dtype, tensor.dtype) == ("bfloat16", "float32")
        if tensor.dtype != stored.dtype and not widened:
            return f"{tensor.name}: {tensor.dtype} here, {stored.dtype} in the checkpoint"
        if not isinstance(stored_as, tuple) and tensor.shape != stored.shape:
            return f"{tensor.name}: shape {list(tensor.shape)} here, {list(stored.shape)} in the checkpoint"
    if isinstance(stored_as, Widened):
        filled = tensor.offset == 0 and nbytes == checkpoint.tensors[stored_as.tensor].nbytes // BFLOAT16 * FLOAT32
        return _uncontiguous(tensor) if filled else f"{tensor.name}: does not fill its storage of {nbytes} bytes"
    ranges = _ranges(stored_as, checkpoint)
    for each in ranges:
        if not 0 <= each.offset < each.offset + each.length <= checkpoint.tensors[each.tensor].nbytes:
            return f"{tensor.name}: {each.tensor} has no {each.length} bytes from {each.offset} on"
    total = sum(each.length for each in ranges)
    if tensor.offset != 0 or nbytes != total:
        return f"{tensor.name}: fills {total} bytes from {tensor.offset} on of a storage of {nbytes}"
    return _uncontiguous(tensor)


def _uncontiguous(tensor: Tensor) -> str:
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride), strict=True):
        if size != 1 and stride != step:
            return f"{tensor.name}: not contiguous (stride {list(tensor.stride)})"
        step *= size
    return ""


def named(stored_as: StoredAs) -> Iterable[str]:
    """The stored tensors that something is read of, each once."""
    match stored_as:
        case str():
            return (stored_as,)
        case Widened():
            return (stored_as.tensor,)
        case tuple():
            return dict.fromkeys(each.tensor for each in stored_as)
        case _:
            assert_never(stored_as)


def _extents(stored_as: StoredAs, nbytes: int, checkpoint: Checkpoint) -> tuple[Extent, ...]:
    if isinstance(stored_as, Widened):
        stored = checkpoint.tensors[stored_as.tensor]
        return (Extent(0, nbytes, stored.file, stored.offset, widened=True),)
    return _joined(_ranges(stored_as, checkpoint), checkpoint)


def _ranges(stored_as: str | tuple[StoredRange, ...], checkpoint: Checkpoint) -> Sequence[StoredRange]:
    if isinstance(stored_as, str):
        return (StoredRange(stored_as, 0, checkpoint.tensors[stored_as].nbytes),)
    return stored_as


def _joined(ranges: Iterable[StoredRange], checkpoint: Checkpoint) -> tuple[Extent, ...]:
    """``ranges`` one after the other in a storage; those that follow each other in a file are one extent."""
    extents: list[Extent] = []
    within = 0
    for each in ranges:
        stored = checkpoint.tensors[each.tensor]
        extent = Extent(within, each.length, stored.file, stored.offset + each.offset)
        last = extents[-1] if extents else None
        if last is not None and last.file == extent.file and last.offset + last.length == extent.offset:
            extents[-1] = Extent(last.within, last.length + extent.length, last.file, last.offset)
        else:
            extents.append(extent)
        within += each.length
    return tuple(extents)


def _within(extent: Extent) -> int:
    return extent.within


def _shown(stored_as: StoredAs) -> str:
    first, *others = named(stored_as)
    return f"{first} and others" if others else first
