"""What a module is made of: tensors that travel, tensors computed here, and what cannot be handled.

Decides by registration, never by value: parameters and persistent buffers are carried, every
alias under its own name; non-persistent buffers and tensors in plain attributes are computed
locally, because a peer's may have changed while it served. It must not know checkpoints, nor
how the module was built. Builders turn problems into one SkeletonError (``module.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from coldstart.skeletons.adoption import byte_range, not_plain

_REGISTRIES = frozenset({"_parameters", "_buffers", "_modules"})
_DEPTH = 4
"""How deep containers in plain attributes are searched for tensors."""


@dataclass(frozen=True)
class Shared:
    """A local tensor whose bytes lie inside a carried one; ``offset`` in bytes from its first."""

    tensor: torch.Tensor
    carried: str
    offset: int


@dataclass(frozen=True)
class Inventory:
    """Every tensor of a module, by dotted name.

    ``carried`` travels, ``local`` is computed here, ``shared`` are local tensors on carried
    memory, ``problems`` says in words what can be neither carried nor rebuilt.
    """

    carried: Mapping[str, torch.Tensor]
    local: Mapping[str, torch.Tensor]
    shared: Mapping[str, Shared]
    problems: tuple[str, ...]


def take_inventory(module: nn.Module, local_buffers: Collection[str] = ()) -> Inventory:
    """Walk ``module``; ``local_buffers`` names persistent buffers that are computed here after all."""
    carried: dict[str, torch.Tensor] = {}
    local: dict[str, torch.Tensor] = {}
    problems: list[str] = []
    for path, owner in module.named_modules(remove_duplicate=False):
        if type(owner).get_extra_state is not nn.Module.get_extra_state:
            problems.append(f"{path or 'the module'} ({type(owner).__name__}) keeps extra state outside its tensors")
        for name, registered, persistent in _registered(owner):
            full = _join(path, name)
            (carried if persistent and full not in local_buffers else local)[full] = registered
    known = {id(tensor) for tensor in (*carried.values(), *local.values())}
    for name, found in _hidden(module):
        if isinstance(found, nn.Module):
            problems.append(f"{name} is a module with tensors in a plain attribute; register it (nn.ModuleList)")
        elif id(found) not in known:
            local[name] = found
    problems.extend(
        f"{name} is {reason}"
        for name, tensor in (*carried.items(), *local.items())
        if (reason := not_plain(tensor)) and (name in carried or tensor.is_meta)
    )
    shared: dict[str, Shared] = {}
    if not problems:
        shared, problems = _sharing(carried, local)
    kept = {name: tensor for name, tensor in local.items() if name not in shared}
    return Inventory(carried, kept, shared, tuple(problems))


def _registered(owner: nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Name, tensor and whether it is persistent, of one module's own parameters and buffers."""
    for name, parameter in owner._parameters.items():
        if parameter is not None:
            yield name, parameter, True
    for name, buffer in owner._buffers.items():
        if buffer is not None:
            yield name, buffer, name not in owner._non_persistent_buffers_set


def _hidden(module: nn.Module) -> Iterator[tuple[str, torch.Tensor | nn.Module]]:
    """Tensors in plain attributes, bare or in containers, and unregistered modules that hold tensors."""
    registered = {id(owner) for owner in module.modules()}
    for path, owner in module.named_modules():
        derived = _derived(owner)
        for name, value in vars(owner).items():
            if name in _REGISTRIES or name in derived:
                continue
            for full, found in _inside(value, _join(path, name), _DEPTH):
                if isinstance(found, torch.Tensor) or (id(found) not in registered and _holds_tensors(found)):
                    yield full, found


def _derived(owner: nn.Module) -> set[str]:
    """Plain attributes that a hook computes again before every forward.

    ``weight_norm``, ``spectral_norm`` (their older forms) and pruning name them in the hook.
    """
    hooks = owner._forward_pre_hooks.values()
    names = (getattr(hook, "name", None) or getattr(hook, "_tensor_name", None) for hook in hooks)
    return {name for name in names if isinstance(name, str)}


def _inside(value: object, name: str, depth: int) -> Iterator[tuple[str, torch.Tensor | nn.Module]]:
    if isinstance(value, torch.Tensor | nn.Module):
        yield name, value
    elif depth and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _inside(item, f"{name}[{key!r}]", depth - 1)
    elif depth and isinstance(value, list | tuple | set | frozenset):
        for index, item in enumerate(value):
            yield from _inside(item, f"{name}[{index}]", depth - 1)


def _holds_tensors(module: nn.Module) -> bool:
    return any(True for _ in module.parameters()) or any(True for _ in module.buffers())


def _sharing(
    carried: Mapping[str, torch.Tensor], local: Mapping[str, torch.Tensor]
) -> tuple[dict[str, Shared], list[str]]:
    """Local tensors on carried memory; and problems: half on it, or without memory of their own."""
    owners: dict[int, list[tuple[int, int, str]]] = {}
    for name, tensor in carried.items():
        if tensor.numel():
            owners.setdefault(tensor.untyped_storage()._cdata, []).append((*byte_range(tensor), name))
    shared: dict[str, Shared] = {}
    problems: list[str] = []
    for name, tensor in local.items():
        if not_plain(tensor) or not tensor.numel():
            continue
        low, high = byte_range(tensor)
        touched = [
            (start, end, owner)
            for start, end, owner in owners.get(tensor.untyped_storage()._cdata, ())
            if low < end and start < high
        ]
        around = [(start, owner) for start, end, owner in touched if start <= low and high <= end]
        if around:
            shared[name] = Shared(tensor, around[0][1], low - around[0][0])
        elif touched:
            problems.append(f"{name} is not carried but holds the memory of {touched[0][2]}, which is")
        elif tensor.is_meta:
            problems.append(f"{name} was computed from parameters, which have no values yet; compute it when used")
    return shared, problems


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
