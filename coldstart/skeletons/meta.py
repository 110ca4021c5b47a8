"""Parameters without memory while a factory runs, and buffers computed as ever.

Decides nothing about a model: it takes the memory away from each parameter at the moment the
parameter is registered, without changing the object. So ties survive, initialisation costs
nothing (torch's initialisers do no work on meta), and buffers and plain tensors get their real
values, which a factory run on the meta device as a whole would lose. What of the result is
carried is decided in ``classify.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import cast

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.hooks import RemovableHandle

from coldstart.skeletons.adoption import exchange, not_plain, swapped, view_of

_Hook = Callable[[nn.Module, str, nn.Parameter], nn.Parameter | None]

# Typed here: torch leaves the first untyped, and says of the second that hooks return nothing.
_weak: Callable[[torch.UntypedStorage], StorageWeakRef] = StorageWeakRef
_register = cast(Callable[[_Hook], RemovableHandle], register_module_parameter_registration_hook)


_building = threading.local()
"""Whose block each thread is in."""


def _on_registration(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter | None:
    now: MetaParameters | None = getattr(_building, "now", None)
    return None if now is None else now._without_memory(parameter)


@cache
def _listen() -> None:
    """Hear of every parameter from now on. Once and for good: torch walks its hooks without a lock, and a module that
    another thread is just making fails when they change."""
    _register(_on_registration)


class MetaParameters:
    """Takes the memory from parameters; those that shared memory share meta memory afterwards.

    Args:
        dtype: floating-point parameters get this dtype on the way; None keeps their own.
    """

    def __init__(self, dtype: torch.dtype | None) -> None:
        self._dtype = dtype
        self._storages: dict[tuple[int, torch.dtype], tuple[StorageWeakRef, torch.UntypedStorage]] = {}
        self._replaced: dict[int, tuple[torch.Tensor, nn.Parameter]] = {}

    @contextmanager
    def while_building(self) -> Iterator[None]:
        """Parameters that this thread registers in the block lose their memory."""
        _listen()
        before: MetaParameters | None = getattr(_building, "now", None)
        _building.now = self
        try:
            yield
        finally:
            _building.now = before

    def sweep(self, module: nn.Module) -> None:
        """Take the memory from parameters that were registered behind the hook's back."""
        for parameter in module.parameters():
            if self._changes(parameter):
                exchange(module, parameter, self._memory(parameter))

    def _without_memory(self, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or not self._changes(parameter):
            return None
        if id(parameter) in self._replaced:
            return self._replaced[id(parameter)][1]
        now = swapped(parameter, self._memory(parameter))
        if now is parameter or not isinstance(now, nn.Parameter):
            return None
        self._replaced[id(parameter)] = (parameter, now)
        return now

    def _changes(self, parameter: torch.Tensor) -> bool:
        return not not_plain(parameter) and (not parameter.is_meta or self._target(parameter) != parameter.dtype)

    def _target(self, parameter: torch.Tensor) -> torch.dtype:
        return self._dtype if self._dtype and parameter.is_floating_point() else parameter.dtype

    def _memory(self, parameter: torch.Tensor) -> torch.Tensor:
        """Meta memory like the parameter's, the same for all parameters of one storage."""
        storage, dtype = parameter.untyped_storage(), self._target(parameter)
        key = (storage._cdata, parameter.dtype)
        if key not in self._storages:
            elements = storage.nbytes() // parameter.itemsize
            meta = torch.empty(elements, dtype=dtype, device="meta").untyped_storage()
            # The weak reference keeps the key from being reused for another storage; it keeps no memory.
            self._storages[key] = (_weak(storage), meta)
        offset = int(parameter.storage_offset()) * dtype.itemsize
        return view_of(self._storages[key][1], dtype, offset, parameter.shape, parameter.stride())
