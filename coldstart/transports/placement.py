"""Whether a checkpoint holds a layout byte for byte, and where.

Decides, from names, dtypes, shapes and sizes alone, which stored tensor is the content of which
storage; or says in words why there is none. Pure: it reads no file and must not know torch. The
bytes are read by ``storage.py``; where the answer is no, the skeleton's own ``load`` is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from coldstart.layout import Layout, Tensor
from coldstart.ports import Checkpoint, StoredTensor


class Placement(msgspec.Struct, frozen=True):
    """For each storage of a layout, in order, the stored tensor whose bytes are exactly its bytes."""

    tensors: tuple[StoredTensor, ...]


class Unplaced(msgspec.Struct, frozen=True):
    """Why a checkpoint cannot be read byte for byte into a layout."""

    reason: str


def place(layout: Layout, stored_names: Mapping[str, str], checkpoint: Checkpoint) -> Placement | Unplaced:
    """Find the stored tensor behind every storage.

    Args:
        layout: what is to be filled.
        stored_names: carried name to checkpoint name; aliases may be left out.
        checkpoint: whose headers say what there is.
    """
    views: list[list[Tensor]] = [[] for _ in layout.storages]
    for tensor in layout.tensors:
        if tensor.storage >= 0:
            views[tensor.storage].append(tensor)
    tensors: list[StoredTensor] = []
    for nbytes, tenants in zip(layout.storages, views, strict=True):
        found = _stored(nbytes, tenants, stored_names, checkpoint)
        if isinstance(found, Unplaced):
            return found
        tensors.append(found)
    return Placement(tuple(tensors))


def _stored(
    nbytes: int, tenants: Sequence[Tensor], stored_names: Mapping[str, str], checkpoint: Checkpoint
) -> StoredTensor | Unplaced:
    """The one stored tensor that fills a storage, given all tensors that live in it."""
    found: dict[str, StoredTensor] = {}
    reasons: list[str] = []
    for tensor in tenants:
        stored_name = stored_names.get(tensor.name)
        stored = checkpoint.tensors.get(stored_name) if stored_name is not None else None
        if stored is not None and not (reason := _mismatch(tensor, nbytes, stored)):
            found[stored.name] = stored
        elif stored is not None:
            reasons.append(reason)
        elif stored_name is not None:
            reasons.append(f"{tensor.name}: the checkpoint has no tensor {stored_name}")
    if len(found) > 1:
        return Unplaced(f"{tenants[0].name}: one storage here, stored several times ({', '.join(sorted(found))})")
    if found:
        return next(iter(found.values()))
    names = tenants[0].name if tenants else "a storage without tensors"
    return Unplaced(reasons[0] if reasons else f"{names}: not mapped to a tensor of the checkpoint")


def _mismatch(tensor: Tensor, nbytes: int, stored: StoredTensor) -> str:
    """Why the bytes of ``stored`` are not those of the whole storage of ``tensor``; empty if they are."""
    if tensor.dtype != stored.dtype:
        return f"{tensor.name}: {tensor.dtype} here, {stored.dtype} in the checkpoint"
    if tensor.shape != stored.shape:
        return f"{tensor.name}: shape {list(tensor.shape)} here, {list(stored.shape)} in the checkpoint"
    if tensor.offset != 0 or nbytes != stored.nbytes:
        return f"{tensor.name}: fills {stored.nbytes} bytes from {tensor.offset} on of a storage of {nbytes}"
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride), strict=True):
        if size != 1 and stride != step:
            return f"{tensor.name}: not contiguous (stride {list(tensor.stride)})"
        step *= size
    return ""
