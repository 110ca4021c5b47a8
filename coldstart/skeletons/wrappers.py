"""Tensors made of other tensors, such as torchao's quantised weights: their parts, and how they are made again.

Decides what a traceable wrapper subclass consists of, by its own word (``__tensor_flatten__``), and whether it can be
made again elsewhere: its parts must be plain memory, and the rest of it, its context, must be plain data, so that two
workers can be compared by it. The parts are carried as any tensor is (``classify.py``, ``adoption.py``); the contexts
are in the builder's identity (``module.py``). It must not know a quantisation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Protocol, cast

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

MARK = "@"
"""Between the name of a parameter and the name of one of its parts: ``layers.0.weight@scale``."""

_BASIC = frozenset({torch.Tensor, nn.Parameter, nn.Buffer})
_LITERAL = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.layout, torch.memory_format)

# Typed here because torch narrows types with it.
_is_traceable: Callable[[object], bool] = is_traceable_wrapper_subclass


class _Wrapper(Protocol):
    """What torch's functions for such classes ask of them."""

    def __tensor_flatten__(self) -> tuple[list[str], object]: ...

    @classmethod
    def __tensor_unflatten__(
        cls, inner: Mapping[str, torch.Tensor], context: object, shape: torch.Size, stride: tuple[int, ...]
    ) -> torch.Tensor: ...


class _Incomparable(Exception):
    """A context holds what says nothing of itself; the argument says what."""


def is_wrapper(tensor: object) -> bool:
    """Whether ``tensor`` is made of other tensors, and says of which."""
    return type(tensor) not in _BASIC and _is_traceable(tensor)


def parts(wrapper: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors that ``wrapper`` is made of, by the names it gives them."""
    names, _ = _flattened(wrapper)
    return {name: getattr(wrapper, name) for name in names}


def made_again(wrapper: torch.Tensor, inner: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """A wrapper like ``wrapper`` on other parts; what was hung on the object, such as flags, comes along."""
    _, context = _flattened(wrapper)
    kind = cast(type[_Wrapper], type(wrapper))
    made = kind.__tensor_unflatten__(inner, context, wrapper.size(), wrapper.stride())
    for name, value in vars(wrapper).items():
        vars(made).setdefault(name, value)
    return made.requires_grad_(wrapper.requires_grad) if made.is_floating_point() else made


def obstacle(wrapper: torch.Tensor) -> str:
    """Why ``wrapper`` cannot travel as its parts; empty if it can."""
    if type(wrapper).__name__ == "DTensor":
        return "a DTensor, sharded over a device mesh; build a rank's part without it, and shard after the cold start"
    kind = f"a {type(wrapper).__name__}, a tensor made of other tensors"
    inner = parts(wrapper)
    if nested := [name for name, part in inner.items() if is_wrapper(part)]:
        return f"{kind}, whose {nested[0]} is made of others again"
    hidden = [name for name, value in vars(wrapper).items() if isinstance(value, torch.Tensor) and name not in inner]
    if hidden:
        return f"{kind}, which keeps {hidden[0]} besides those it names"
    try:
        described(wrapper)
    except _Incomparable as error:
        return f"{kind} and of {error}, by which workers cannot be compared"
    return ""


def described(wrapper: torch.Tensor) -> str:
    """What ``wrapper`` is besides the bytes of its parts, in words that are the same in every worker."""
    names, context = _flattened(wrapper)
    seen = (wrapper.dtype, tuple(wrapper.shape), wrapper.stride(), names, context)
    return f"{_called(type(wrapper))}{_written(seen)}"


def digest_of(module: nn.Module) -> str:
    """16 digits that differ where the wrappers of two modules do; empty for a module without any."""
    found = [f"{name} {described(each)}\n" for name, each in wrappers(module) if not obstacle(each)]
    return hashlib.sha256("".join(found).encode()).hexdigest()[:16] if found else ""


def differing(one: nn.Module, two: nn.Module) -> str:
    """The first wrapper of ``one`` that can travel and is none in ``two``, or another; empty if there is none."""
    others = dict(wrappers(two))
    for name, wrapper in wrappers(one):
        if obstacle(wrapper):
            continue
        other = others.get(name)
        if other is None or obstacle(other) or described(other) != described(wrapper):
            return name
    return ""


def wrappers(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters and buffers that are wrappers, under every name."""
    for name, tensor in _registered(module):
        if is_wrapper(tensor):
            yield name, tensor


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter and buffer by every name; in place of a wrapper its parts, if it can travel as these."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in _registered(module):
        found.update(by_part(name, tensor))
    return found


def by_part(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """``tensor`` under its name, or, if it is a wrapper that can travel, its parts under theirs."""
    if not is_wrapper(tensor) or obstacle(tensor):
        return {name: tensor}
    return {f"{name}{MARK}{part}": inner for part, inner in parts(tensor).items()}


def _registered(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _flattened(wrapper: torch.Tensor) -> tuple[list[str], object]:
    return cast(_Wrapper, wrapper).__tensor_flatten__()


def _written(value: object) -> str:
    """Plain data in words; raises :class:`_Incomparable` where there is something else in it."""
    if isinstance(value, Enum):
        return f"{_called(type(value))}.{value.name}"
    if isinstance(value, _LITERAL):
        return repr(value)
    if isinstance(value, type):
        return _called(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{_written(key)}: {_written(held)}' for key, held in value.items()))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(_written, value)))}}}"
    if is_dataclass(value):
        told = ", ".join(f"{each.name}={_written(getattr(value, each.name))}" for each in fields(value))
        return f"{_called(type(value))}({told})"
    raise _Incomparable("tensors without a name" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}")


def _called(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
