"""Whether a checkpoint holds a layout, byte for byte or number for number, and where.

Decides, from names, dtypes, shapes and sizes alone, which bytes of which files are the content of
which storage; or says in words why there are none. A storage is one stored tensor, or is made of
ranges of several where the loader merges them (the experts of a layer, for one); where the loader
does nothing else to the numbers, they may be stored in another dtype (``conversions.py``). Pure: it
reads no file and must not know torch. The bytes are read by ``storage.py``; where the answer is no,
the skeleton's own ``load`` is used.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import assert_never

import msgspec

from coldstart.layout import Layout, Piece, Tensor
from coldstart.ports import Cast, Checkpoint, StoredAs, StoredRange, StoredTensor
from coldstart.transports.conversions import Conversion, conversion


class Extent(msgspec.Struct, frozen=True):
    """Consecutive bytes of a storage that are consecutive in a file.

    ``within`` is where they start in the storage, ``offset`` where in ``file``; all in bytes. With a ``conversion`` the
    file has them in another dtype, from ``offset`` on as many numbers, which may be more or fewer bytes. One that was
    cut within a number begins with that number in the file.
    """

    within: int
    length: int
    file: Path
    offset: int
    conversion: Conversion | None = None

    @property
    def stored(self) -> int:
        """Bytes in the file, of an extent of whole numbers."""
        return self.length if self.conversion is None else self.conversion.stored_length(0, self.length)

    def cut(self, skipped: int, length: int) -> Extent:
        """``length`` bytes of it, without the first ``skipped``."""
        before = skipped if self.conversion is None else self.conversion.stored_offset(skipped)
        return Extent(self.within + skipped, length, self.file, self.offset + before, self.conversion)


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
            yield extent.cut(skipped, length)


class Unplaced(msgspec.Struct, frozen=True):
    """Why a checkpoint cannot be read chunk by chunk into a layout."""

    reason: str


def place(layout: Layout, stored_names: Mapping[str, StoredAs], checkpoint: Checkpoint) -> Placement | Unplaced:
    """Find the stored bytes behind every storage.

    Args:
        layout: what is to be filled.
        stored_names: carried name to checkpoint name, or to ranges of stored tensors, cast or not; aliases may be
            left out.
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
            found.setdefault(_extents(tensor, stored_as, checkpoint), _shown(stored_as))
    if len(found) > 1:
        several = ", ".join(sorted(found.values()))
        return Unplaced(f"{tenants[0].name}: one storage here, stored several times ({several})")
    if found:
        return next(iter(found))
    names = tenants[0].name if tenants else "a storage without tensors"
    return Unplaced(reasons[0] if reasons else f"{names}: not mapped to a tensor of the checkpoint")


def _mismatch(tensor: Tensor, nbytes: int, stored_as: StoredAs, checkpoint: Checkpoint) -> str:
    """Why what is stored is not the whole storage of ``tensor``; empty if it is."""
    whole = isinstance(_uncast(stored_as), str)
    for name in named(stored_as):
        stored = checkpoint.tensors.get(name)
        if stored is None:
            return f"{tensor.name}: the checkpoint has no tensor {name}"
        if tensor.dtype != stored.dtype and _conversion(tensor, stored_as, stored) is None:
            return f"{tensor.name}: {tensor.dtype} here, {stored.dtype} in the checkpoint"
        if whole and tensor.shape != stored.shape:
            return f"{tensor.name}: shape {list(tensor.shape)} here, {list(stored.shape)} in the checkpoint"
    total = 0
    for each in _ranges(stored_as, checkpoint):
        stored = checkpoint.tensors[each.tensor]
        if not 0 <= each.offset < each.offset + each.length <= stored.nbytes:
            return f"{tensor.name}: {each.tensor} has no {each.length} bytes from {each.offset} on"
        cast = _conversion(tensor, stored_as, stored)
        if cast is not None and (each.offset % cast.stored_size or each.length % cast.stored_size):
            return f"{tensor.name}: {each.length} bytes from {each.offset} on are no whole numbers of {each.tensor}"
        total += each.length if cast is None else cast.carried_length(each.length)
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
    stored = _uncast(stored_as)
    match stored:
        case str():
            return (stored,)
        case tuple():
            return dict.fromkeys(each.tensor for each in stored)
        case _:
            assert_never(stored)


def _uncast(stored_as: StoredAs) -> str | tuple[StoredRange, ...]:
    return stored_as.stored if isinstance(stored_as, Cast) else stored_as


def _conversion(tensor: Tensor, stored_as: StoredAs, stored: StoredTensor) -> Conversion | None:
    """How ``stored`` is cast to become (a part of) ``tensor``; None if it is not."""
    return conversion(stored.dtype, tensor.dtype) if isinstance(stored_as, Cast) else None


def _ranges(stored_as: StoredAs, checkpoint: Checkpoint) -> Sequence[StoredRange]:
    stored = _uncast(stored_as)
    if isinstance(stored, str):
        return (StoredRange(stored, 0, checkpoint.tensors[stored].nbytes),)
    return stored


def _extents(tensor: Tensor, stored_as: StoredAs, checkpoint: Checkpoint) -> tuple[Extent, ...]:
    """Its ranges one after the other in a storage; those that follow each other in a file are one extent."""
    extents: list[Extent] = []
    within = 0
    for each in _ranges(stored_as, checkpoint):
        stored = checkpoint.tensors[each.tensor]
        cast = _conversion(tensor, stored_as, stored)
        length = each.length if cast is None else cast.carried_length(each.length)
        extent = Extent(within, length, stored.file, stored.offset + each.offset, cast)
        if extents and _follows(extents[-1], extent):
            extents[-1] = msgspec.structs.replace(extents[-1], length=extents[-1].length + length)
        else:
            extents.append(extent)
        within += length
    return tuple(extents)


def _follows(last: Extent, extent: Extent) -> bool:
    return (last.file, last.offset + last.stored, last.conversion) == (extent.file, extent.offset, extent.conversion)


def _within(extent: Extent) -> int:
    return extent.within


def _shown(stored_as: StoredAs) -> str:
    first, *others = named(stored_as)
    return f"{first} and others" if others else first
