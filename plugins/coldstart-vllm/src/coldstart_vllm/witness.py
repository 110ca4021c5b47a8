"""Proof that filling a module only copied values into its carried tensors.

Some models finish their weights inside ``load_weights``: they set flags, fold tensors, build lists. A
worker that got only the tensors from a peer would lack all that, without an error. So whoever reads
storage compares everything else before and after, and where anything has changed these weights are
never lent. Seen are modules, their attributes, those of parameters, and what hangs on them a few
objects deep; not seen is what a model writes into globals of its own.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import torch
from torch import nn

from coldstart.skeletons.adoption import elements, not_plain

DEPTH = 4
"""How many objects deep below a module's attribute is looked."""

_REGISTRIES = ("_parameters", "_buffers", "_modules")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, enum.Enum)
_OPAQUE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)

State = Mapping[str, str]
"""Path to what is there, as text."""


def state_of(module: nn.Module, carried: Collection[torch.Tensor]) -> State:
    """All of ``module`` but the values of ``carried``; of those it notes where they lie."""
    return dict(_Walk(carried).modules(module))


def changes(before: State, after: State) -> tuple[str, ...]:
    """Paths that are there on one side only, or hold something else; in order."""
    return tuple(sorted(path for path in {*before, *after} if before.get(path) != after.get(path)))


class _Walk:
    """One walk over a module; each object is described where it is met first, and named afterwards."""

    def __init__(self, carried: Collection[torch.Tensor]) -> None:
        self._carried = {id(tensor) for tensor in carried}
        self._met: dict[int, str] = {}
        self._kept: list[object] = []
        """Keeps what was met alive, so that no number is given out twice."""

    def modules(self, module: nn.Module) -> Iterator[tuple[str, str]]:
        for path, owner in module.named_modules(remove_duplicate=False):
            yield path, f"{type(owner).__qualname__} {id(owner)}"
            if self._known(owner, path) is not None:
                continue
            for registry in _REGISTRIES:
                held: Mapping[str, object] = vars(owner)[registry]
                yield f"{path}:{registry}", " ".join(f"{name}={id(value)}" for name, value in held.items())
            for name, tensor in (*owner._parameters.items(), *owner._buffers.items()):
                if tensor is not None:
                    yield from self._of(tensor, f"{path}.{name}", DEPTH)
            for name, value in vars(owner).items():
                if name not in _REGISTRIES:
                    yield from self._of(value, f"{path}.{name}", DEPTH)

    def _of(self, value: object, path: str, depth: int) -> Iterator[tuple[str, str]]:
        if isinstance(value, _PLAIN):
            yield path, repr(value)
            return
        if isinstance(value, _OPAQUE):
            yield path, getattr(value, "__qualname__", repr(type(value)))
            return
        known = self._known(value, path)
        if known is not None or depth == 0 or isinstance(value, nn.Module):
            yield path, f"{type(value).__qualname__} {known or id(value)}"
            return
        if isinstance(value, torch.Tensor):
            yield path, self._tensor(value)
            yield from self._items(vars(value).items(), path, depth)
        elif isinstance(value, Mapping):
            yield path, f"{len(value)} items"
            yield from self._items(value.items(), path, depth)
        elif isinstance(value, Sequence | Set):
            yield path, f"{len(value)} items"
            ordered = value if isinstance(value, Sequence) else sorted(value, key=repr)
            yield from self._items(enumerate(ordered), path, depth)
        else:
            yield path, type(value).__qualname__
            yield from self._items(getattr(value, "__dict__", {}).items(), path, depth)

    def _items(self, items: Iterable[tuple[object, object]], path: str, depth: int) -> Iterator[tuple[str, str]]:
        for key, item in list(items):
            yield from self._of(item, f"{path}.{key}", depth - 1)

    def _known(self, value: object, path: str) -> str | None:
        """Where ``value`` was met before; None the first time, when it is noted."""
        known = self._met.get(id(value))
        if known is None:
            self._met[id(value)] = path
            self._kept.append(value)
        return known

    def _tensor(self, tensor: torch.Tensor) -> str:
        shape = f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}"
        if tensor.is_meta or not_plain(tensor):
            return f"{shape} {not_plain(tensor) or 'meta'}"
        place = f"{shape} at {tensor.data_ptr()}"
        return place if id(tensor) in self._carried else f"{place} {_digest(tensor)}"


def _digest(tensor: torch.Tensor) -> str:
    if not tensor.numel():
        return "empty"
    values = elements(tensor.detach()).contiguous().cpu()
    return hashlib.blake2b(values.numpy().data, digest_size=16).hexdigest()
