"""Adoption: a module's carried tensors written down as a layout, and moved into an arena.

Decides which tensors share a storage of the layout, and changes the memory under a tensor
without changing the object, so that ties, lists and attributes of the module stay right. It
must not know which tensors are carried (``classify.py``) nor how bytes reach the arena
(``coldstart/arena.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import torch
from torch import nn

from coldstart.arena import Arena, device_of, settle
from coldstart.errors import ConfigError, SkeletonError
from coldstart.inplace import InPlace
from coldstart.layout import CHUNK_UNIT, MIN_CHUNK, Layout, Tensor, chunk_bytes_for, differences
from coldstart.skeletons.wrappers import is_wrapper, made_again, obstacle, parts, tensors_of, wrappers

# Typed here because torch leaves it untyped.
_swap: Callable[[torch.Tensor, torch.Tensor], None] = torch.utils.swap_tensors


def layout_of(carried: Mapping[str, torch.Tensor], chunk_bytes: int | None = None) -> Layout:
    """The layout of tensors as they are now, on any device, meta included.

    Tensors whose bytes overlap share a storage of the layout; storages stand in the order of
    the first tensor that uses them. Only the range of bytes that tensors use is carried, not
    the rest of the memory they were cut from, so a module keeps its layout when it moves.

    Args:
        carried: names to tensors, in the order of the stream.
        chunk_bytes: size of a chunk, a multiple of 256 KiB; chosen by size if None.

    Raises:
        SkeletonError: a tensor that is not plain strided memory.
        ConfigError: ``chunk_bytes`` is not a multiple of 256 KiB.
    """
    if chunk_bytes is not None and (chunk_bytes <= 0 or chunk_bytes % CHUNK_UNIT):
        raise ConfigError(f"chunk size {chunk_bytes} is not a multiple of {CHUNK_UNIT} bytes")
    places = _storages(carried)
    sizes: dict[int, int] = {}
    order: dict[int, int] = {}
    tensors: list[Tensor] = []
    for name, tensor in carried.items():
        index, offset = -1, 0
        if tensor.numel():
            storage, offset, size = places[name]
            index = order.setdefault(storage, len(order))
            sizes[index] = size
        dtype = str(tensor.dtype).removeprefix("torch.")
        tensors.append(Tensor(name, dtype, tuple(tensor.shape), tuple(tensor.stride()), index, offset))
    layout = Layout(tuple(tensors), tuple(sizes[i] for i in range(len(sizes))), chunk_bytes or MIN_CHUNK)
    if chunk_bytes is None:
        layout = msgspec.structs.replace(layout, chunk_bytes=chunk_bytes_for(layout.nbytes))
    return layout


def _storages(carried: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, int, int]]:
    """For each tensor that has bytes: number of its storage, byte offset in it, bytes of it."""
    ranges: dict[int, list[tuple[int, int, str]]] = {}
    for name, tensor in carried.items():
        if reason := not_plain(tensor):
            raise SkeletonError(f"tensor {name} cannot be carried: it is {reason}")
        if tensor.numel():
            low, high = byte_range(tensor)
            ranges.setdefault(tensor.untyped_storage()._cdata, []).append((low, high, name))
    places: dict[str, tuple[int, int, int]] = {}
    number = 0
    for used in ranges.values():
        for group in _overlapping(sorted(used)):
            # Views keep the alignment that their dtypes need: the start is rounded to the widest.
            widest = max(carried[name].itemsize for _, _, name in group)
            start = group[0][0] // widest * widest
            size = max(high for _, high, _ in group) - start
            places.update({name: (number, low - start, size) for low, _, name in group})
            number += 1
    return places


def _overlapping(used: Sequence[tuple[int, int, str]]) -> Iterator[list[tuple[int, int, str]]]:
    """Groups of byte ranges, given in order, that are joined by overlaps."""
    group: list[tuple[int, int, str]] = []
    end = 0
    for low, high, name in used:
        if group and low >= end:
            yield group
            group = []
        group.append((low, high, name))
        end = max(end, high) if len(group) > 1 else high
    if group:
        yield group


def byte_range(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte and end of what a tensor with elements uses of its storage."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset())
    return start * tensor.itemsize, (start + int(last) + 1) * tensor.itemsize


def not_plain(tensor: torch.Tensor) -> str:
    """Why ``tensor`` is more than strided memory; empty if it is not."""
    if torch.nn.parameter.is_lazy(tensor):
        return "an uninitialised parameter of a lazy module"
    if is_wrapper(tensor):
        return obstacle(tensor) or f"a {type(tensor).__name__}, a tensor made of other tensors"
    if tensor.is_quantized:
        return "quantised in torch's old way, with a scale outside its bytes"
    if tensor.layout is not torch.strided:
        return f"not strided but {str(tensor.layout).removeprefix('torch.')}"
    if tensor.is_conj() or tensor.is_neg():
        return "a lazily conjugated or negated view"
    return ""


def adopt(module: nn.Module, carried: Mapping[str, object], device: str, chunk_bytes: int | None = None) -> Arena:
    """Give the carried tensors of ``module`` their memory in a new arena.

    The tensor objects stay the same and only their memory changes, so ties, attributes,
    ``requires_grad`` and every reference the module keeps stay right. Tensors that have values
    keep them; tensors on meta hold nothing of use. The peak is the arena plus the values kept.

    Raises:
        SkeletonError: a carried value that is no tensor, or not plain strided memory.
        ConfigError: the device is unknown or full, or ``chunk_bytes`` is odd.
    """
    tensors = {name: value for name, value in carried.items() if isinstance(value, torch.Tensor)}
    if len(tensors) != len(carried):
        raise SkeletonError(f"{min(carried.keys() - tensors.keys())} is carried but is no tensor")
    with torch.no_grad(), torch.inference_mode(False):
        layout = layout_of(tensors, chunk_bytes)
        arena = Arena(layout, device)
        moved: dict[int, torch.Tensor] = {}
        for placed in layout.tensors:
            tensor = tensors[placed.name]
            if id(tensor) in moved:
                continue
            view = arena.view(placed)
            if not tensor.is_meta and tensor.numel():
                elements(view).copy_(elements(tensor))
            moved[id(tensor)] = exchange(module, tensor, view)
            arena.adopted(moved[id(tensor)], placed)
        _rewrap(module, moved)
        settle(torch.device(arena.device))
    return arena


def _rewrap(module: nn.Module, moved: Mapping[int, torch.Tensor]) -> None:
    """Make wrappers again around parts whose memory has moved: a wrapper has a device of its own."""
    found = {id(wrapper): wrapper for _, wrapper in wrappers(module)}
    for wrapper in found.values():
        inner = parts(wrapper)
        if any(id(part) in moved for part in inner.values()):
            now = {name: moved.get(id(part), part) for name, part in inner.items()}
            _replace(module, wrapper, made_again(wrapper, now))


def in_place(
    module: nn.Module, wanted: Mapping[str, object], device: str, unregistered: Mapping[str, torch.Tensor] | None = None
) -> InPlace:
    """The memory of a loaded ``module``: its tensors of the names in ``wanted``, where they lie.

    Args:
        wanted: the carried tensors of a skeleton of the same family, for comparison.
        unregistered: what of ``module`` is carried although no submodule registers it.

    Raises:
        SkeletonError: a tensor is missing, lies elsewhere, or is not what a joiner will have.
    """
    held = {**tensors_of(module), **(unregistered or {})}
    where = device_of(device)
    skeleton = {name: value for name, value in wanted.items() if isinstance(value, torch.Tensor)}
    if missing := [name for name in skeleton if name not in held]:
        raise SkeletonError(f"the loaded module has no {missing[0]}", advice="lend it with the builder that fits it")
    tensors = {name: held[name] for name in skeleton}
    if elsewhere := [name for name, tensor in tensors.items() if tensor.device != where]:
        name = elsewhere[0]
        raise SkeletonError(f"{name} is on {tensors[name].device}, not on {where}", advice="say device=")
    layout = layout_of(tensors)
    if found := differences(layout, layout_of(skeleton)):
        raise SkeletonError(f"the loaded module is not what its builder makes: {'; '.join(found)}")
    return InPlace(layout, tensors, where)


def exchange(module: nn.Module, tensor: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """Put ``memory`` under ``tensor``, everywhere in ``module``; returns the object now in use.

    That is ``tensor`` itself, unless torch refuses (:func:`swapped`): then a new object takes
    its place among the parameters and buffers of every submodule.
    """
    return _replace(module, tensor, _on(tensor, memory))


def _replace(module: nn.Module, tensor: torch.Tensor, twin: torch.Tensor) -> torch.Tensor:
    """Make ``tensor`` what ``twin`` is, everywhere in ``module``; returns the object now in use."""
    now = _swapped(tensor, twin)
    if now is not tensor:
        for owner in module.modules():
            for name in [name for name, held in owner._parameters.items() if held is tensor]:
                setattr(owner, name, now)  # recurrent modules keep a list of theirs up to date by it
            for name in [name for name, held in owner._buffers.items() if held is tensor]:
                owner._buffers[name] = now
    return now


def swapped(tensor: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """``tensor`` with ``memory`` under it; class, attributes and ``requires_grad`` stay.

    Torch refuses to change a tensor that views or weak references depend on; then this is a new
    object like ``tensor``, for the caller to put in its place.
    """
    return _swapped(tensor, _on(tensor, memory))


def _on(tensor: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """A new object like ``tensor`` on ``memory``."""
    keep_grad = tensor.requires_grad and (memory.is_floating_point() or memory.is_complex())
    twin = torch.Tensor._make_subclass(type(tensor), memory, keep_grad)
    vars(twin).update(vars(tensor))
    return twin


def _swapped(tensor: torch.Tensor, twin: torch.Tensor) -> torch.Tensor:
    try:
        _swap(tensor, twin)
    except RuntimeError:
        return twin
    return tensor


def view_of(
    storage: torch.UntypedStorage, dtype: torch.dtype, offset: int, shape: Sequence[int], stride: Sequence[int]
) -> torch.Tensor:
    """A tensor on existing memory; ``offset`` in bytes, a multiple of the dtype's size."""
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset // dtype.itemsize, shape, stride)


def elements(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's elements: uint8, one more dimension; expanded dimensions have size 1.

    Works for every dtype, also those that torch cannot copy or compare.
    """
    width = tensor.itemsize
    shape = [1 if step == 0 else size for size, step in zip(tensor.shape, tensor.stride(), strict=True)]
    stride = [step * width for step in tensor.stride()]
    offset = int(tensor.storage_offset()) * width
    return view_of(tensor.untyped_storage(), torch.uint8, offset, (*shape, width), (*stride, 1))
