"""State that a module holds besides its registered parameters and buffers.

Decides where to look: attributes of every submodule, containers, plain objects with ``__dict__``
or ``__slots__``, dataclasses, bound arguments and closures, attributes of tensors, hooks. Each
object is looked at once, however it is reached. What becomes of what is found is for
``classify.py``. It does not look into classes' globals, into C objects, nor into the machinery of
torch itself.
"""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import cast

import torch
from torch import nn

from coldstart.skeletons.adoption import not_plain
from coldstart.skeletons.wrappers import is_wrapper

MOST_OBJECTS = 1_000_000
"""A module that holds more objects than this is not looked through, and so not classified."""

_REGISTRIES = frozenset({"_parameters", "_buffers", "_modules"})
_ATOMS = (str, bytes, bytearray, int, float, complex, bool, type(None), Enum, type, types.ModuleType, torch.dtype)
_PLAIN = frozenset({str, int, float, bool, type(None)})
"""The most of what there is, and never of interest."""

_MACHINERY = (
    "torch._dynamo", "torch._inductor", "torch._functorch", "torch._C", "torch._ops", "torch.fx", "torch.distributed",
    "torch.cuda", "threading", "_thread", "logging", "weakref", "asyncio", "concurrent", "multiprocessing", "socket",
    "importlib", "_frozen_importlib", "_frozen_importlib_external", "re", "pathlib",
)  # fmt: skip
"""Packages whose objects are not looked into: they lead everywhere, and keep no state of a model."""


@dataclass(frozen=True)
class Found:
    """A tensor or an unregistered module; ``bare`` if a module's attribute is the thing itself."""

    name: str
    value: torch.Tensor | nn.Module
    bare: bool


class TooMuch(Exception):
    """There is more to look at than is looked at; the argument names where."""


def unregistered(module: nn.Module) -> Iterator[Found]:
    """Tensors that are not registered where they are found, and modules with tensors that nobody registered.

    A registered tensor that is also held elsewhere is found, too. Shortest names come first.

    Raises:
        TooMuch: the module holds more than a million objects.
    """
    owners = {id(owner): path for path, owner in module.named_modules()}
    queue: deque[tuple[str, object, bool]] = deque()
    for path, owner in module.named_modules():
        held_by_class = {name: value for name, value in _of_class(type(owner)) if name not in vars(owner)}
        for name, value in chain(vars(owner).items(), held_by_class.items()):
            if name not in _REGISTRIES and type(value) not in _PLAIN and not _is_empty(value):
                queue.append((_join(path, name), value, True))
        for name, held in chain(owner._parameters.items(), owner._buffers.items()):
            if held is not None:
                queue.extend(_below(held, _join(path, name)))
    names: set[str] = set()
    seen: dict[int, object] = {}  # the objects, too: an id is one object's only while that lives
    while queue:
        name, value, bare = queue.popleft()
        if isinstance(value, _ATOMS) or id(value) in owners or id(value) in seen:
            continue
        seen[id(value)] = value
        if len(seen) > MOST_OBJECTS:
            raise TooMuch(name)
        if isinstance(value, torch.Tensor) or (isinstance(value, nn.Module) and _holds_tensors(value)):
            while name in names:
                name += "'"
            names.add(name)
            yield Found(name, value, bare)
        if not isinstance(value, nn.Module) or not _holds_tensors(value):
            queue.extend(_below(value, name))


def _below(value: object, name: str) -> Iterable[tuple[str, object, bool]]:
    """What ``value`` holds directly, with names."""
    if isinstance(value, torch.Tensor):
        return _attributes(value, name) if is_wrapper(value) or not not_plain(value) else ()
    if isinstance(value, types.MethodType):
        return ((f"{name}.__self__", value.__self__, False), (f"{name}.__func__", value.__func__, False))
    if isinstance(value, types.FunctionType):
        return _of_function(value, name)
    if isinstance(value, functools.partial):
        held = (*enumerate(value.args), *value.keywords.items())
        return ((f"{name}.func", value.func, False), *((f"{name}({key})", item, False) for key, item in held))
    found: Iterable[tuple[str, object, bool]] = ()
    if isinstance(value, dict | types.MappingProxyType):
        # dict's own way of iterating: a class that overrides it may do work, such as importing.
        items = dict.items(value) if isinstance(value, dict) else value.items()
        found = [(f"{name}[{key!r:.60}]", item, False) for key, item in list(items)]
        found += [(f"{name}.key", key, False) for key in dict(items) if not isinstance(key, _ATOMS)]
    elif isinstance(value, list | tuple | set | frozenset | deque):
        found = [(f"{name}[{index}]", item, False) for index, item in enumerate(value)]
    if _is_machinery(type(value).__module__) and not isinstance(value, nn.Module):
        return found
    return chain(found, _attributes(value, name))


def _is_empty(value: object) -> bool:
    """Whether it is one of the many empty containers, such as of hooks, that every module has."""
    return type(value) in (dict, OrderedDict, set, list, tuple) and not value


@functools.lru_cache(1024)
def _is_machinery(module: object) -> bool:
    name = str(module)
    return any(name == package or name.startswith(f"{package}.") for package in _MACHINERY)


def _attributes(value: object, name: str) -> Iterator[tuple[str, object, bool]]:
    """Attributes in the dictionary and in the slots of a plain object."""
    try:
        held = dict(vars(value))
    except TypeError:
        held = {}
    for attribute, item in held.items():
        if type(item) not in _PLAIN:
            yield f"{name}.{attribute}", item, False
    for attribute, slot in () if isinstance(value, torch.Tensor) else _slots(cast(Hashable, type(value))):
        if attribute not in held:
            try:
                yield f"{name}.{attribute}", slot.__get__(value), False
            except AttributeError:  # a slot that is empty
                continue


@functools.lru_cache(1024)
def _slots(kind: Hashable) -> tuple[tuple[str, types.MemberDescriptorType], ...]:
    found = [item for each in cast(type, kind).__mro__ for item in vars(each).items()]
    return tuple((name, slot) for name, slot in found if isinstance(slot, types.MemberDescriptorType))


def _of_function(function: types.FunctionType, name: str) -> Iterator[tuple[str, object, bool]]:
    """What a function carries along: captured variables, defaults, its own attributes."""
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"{name}.<{variable}>", cell.cell_contents, False
        except ValueError:  # a variable that has no value yet
            continue
    for index, default in enumerate(function.__defaults__ or ()):
        yield f"{name}.<default {index}>", default, False
    for variable, default in (function.__kwdefaults__ or {}).items():
        yield f"{name}.<{variable}>", default, False
    for attribute, item in vars(function).items():
        yield f"{name}.{attribute}", item, False


def _of_class(kind: type) -> Iterator[tuple[str, object]]:
    """Tensors and containers that a module's class holds for all of its instances."""
    for each in kind.__mro__:
        if each is nn.Module:
            return
        for name, value in vars(each).items():
            if isinstance(value, torch.Tensor | dict | list | tuple) and not name.startswith("__"):
                yield name, value


def _holds_tensors(module: nn.Module) -> bool:
    return any(True for _ in module.parameters()) or any(True for _ in module.buffers())


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
