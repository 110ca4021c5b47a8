"""Carried tensors in a checkpoint: under which name, and whether they are read chunk by chunk or copied.

Decides how names are matched: exactly, after wrappers' path segments (``module.`` of data
parallel wrappers, ``_orig_mod.`` of compiled modules) are taken off on both sides. Whether a
library renames its tensors is for that library's builder to know. The bytes are placed by
``transports/storage.py``; :func:`fill` is the slower way for what does not map one to one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import safe_open

from coldstart.errors import CheckpointError, SkeletonError
from coldstart.layout import Layout
from coldstart.ports import Cast, Checkpoint, StoredAs, StoredRange, StoredTensor
from coldstart.skeletons.adoption import elements, layout_of
from coldstart.transports.placement import Placement, place
from coldstart.transports.placement import named as named

_WRAPPERS = frozenset({"module", "_orig_mod"})


def bare(name: str) -> str:
    """``name`` without the path segments that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def find_names(names: Iterable[str], checkpoint: Checkpoint, prefix: str = "") -> dict[str, str]:
    """Carried name to checkpoint name, for those that the checkpoint has.

    ``prefix`` is put before carried names (``model.`` where the checkpoint wraps this module).
    """
    stripped: dict[str, str] = {}
    for stored in checkpoint.tensors:
        stripped.setdefault(bare(stored), stored)
    found: dict[str, str] = {}
    for name in names:
        wanted = prefix + name
        stored_name = wanted if wanted in checkpoint.tensors else stripped.get(bare(wanted))
        if stored_name is not None:
            found[name] = stored_name
    return found


def one_to_one(
    carried: Mapping[str, torch.Tensor], checkpoint: Checkpoint, names: Mapping[str, StoredAs]
) -> Mapping[str, StoredAs] | None:
    """``names`` if every storage of ``carried`` is exactly what they say is stored, cast or as it is; else None."""
    return names if isinstance(place(layout_of(carried), names, checkpoint), Placement) else None


def cast_to(
    carried: Mapping[str, torch.Tensor], checkpoint: Checkpoint, names: Mapping[str, str | tuple[StoredRange, ...]]
) -> dict[str, StoredAs]:
    """``names`` for a loader that does nothing but ``.to(dtype)``: what has another dtype in the checkpoint is cast."""
    found: dict[str, StoredAs] = {}
    for name, stored in names.items():
        dtype = str(carried[name].dtype).removeprefix("torch.")
        same = all(checkpoint.tensors[each].dtype == dtype for each in named(stored))
        found[name] = stored if same else Cast(stored)
    return found


def used(stored: Iterable[StoredAs]) -> set[str]:
    """The names of all stored tensors that something is read of."""
    return {name for each in stored for name in named(each)}


def fill(
    carried: Mapping[str, torch.Tensor], checkpoint: Checkpoint, names: Mapping[str, str], *, cast: bool
) -> None:
    """Copy stored tensors into carried ones, in place; blocking.

    Args:
        names: carried name to checkpoint name; one alias of each storage is enough.
        cast: whether a stored dtype may be converted to the carried one.

    Raises:
        SkeletonError: a carried tensor is not stored, has another shape or dtype, or is tied to one that is
            stored with another value.
        CheckpointError: the checkpoint can no longer be read.
    """
    _check_complete(layout_of(carried), names)
    by_file: dict[Path, list[tuple[str, StoredTensor]]] = {}
    for name, stored_name in names.items():
        tensor, stored = carried[name], checkpoint.tensors[stored_name]
        dtype = str(tensor.dtype).removeprefix("torch.")
        if tuple(tensor.shape) != stored.shape or (dtype != stored.dtype and not cast):
            raise SkeletonError(
                f"{name} is {dtype} {list(tensor.shape)} in the module but {stored_name} is {stored.dtype} "
                f"{list(stored.shape)} in the checkpoint",
                advice="build the module in the checkpoint's dtype, or ask for a dtype to convert to",
            )
        by_file.setdefault(stored.file, []).append((name, stored))
    filled: dict[tuple[int, tuple[int, ...]], str] = {}
    for file, wanted in by_file.items():
        try:
            with safe_open(file, framework="pt") as opened, torch.no_grad():
                for name, stored in wanted:
                    tensor, value = carried[name], opened.get_tensor(stored.name)
                    first = filled.setdefault((tensor.data_ptr(), tuple(tensor.shape)), name)
                    if first == name or not tensor.numel():
                        tensor.copy_(value)
                    elif not _same(tensor, value):
                        raise SkeletonError(
                            f"{name} is tied to {first} but the checkpoint stores another value for it",
                            advice="build the module without this tie",
                        )
        except OSError as error:
            raise CheckpointError(f"{file} can no longer be read: {error}") from error


def _same(tensor: torch.Tensor, stored: torch.Tensor) -> bool:
    """Whether ``tensor`` is what ``stored`` becomes here, byte for byte."""
    return torch.equal(elements(tensor), elements(stored.to(tensor.device, tensor.dtype)))


def lacking(
    carried: Mapping[str, torch.Tensor], checkpoint: Checkpoint, names: Mapping[str, str], *, shapes: bool = True
) -> list[str]:
    """In words, what ``checkpoint`` has no value for: tensors without a name in it, and those of another shape.

    Args:
        names: carried name to checkpoint name; one alias of each storage is enough.
        shapes: whether a stored tensor has its module's shape.
    """
    found = [f"{name} is not in the checkpoint" for name in _missing(layout_of(carried), names)]
    for name, stored_name in names.items():
        here, there = tuple(carried[name].shape), checkpoint.tensors[stored_name].shape
        if shapes and here != there:
            found.append(f"{name} is {list(here)} here, {stored_name} is {list(there)} in the checkpoint")
    return found


def _missing(layout: Layout, names: Mapping[str, str]) -> list[str]:
    """The tensors whose storage no name reaches."""
    reached = {tensor.storage for tensor in layout.tensors if tensor.name in names}
    return [tensor.name for tensor in layout.tensors if tensor.storage >= 0 and tensor.storage not in reached]


def _check_complete(layout: Layout, names: Mapping[str, str]) -> None:
    missing = _missing(layout, names)
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise SkeletonError(
            f"the checkpoint has no {', '.join(missing[:3])}{more}", advice="check the prefix and the architecture"
        )
