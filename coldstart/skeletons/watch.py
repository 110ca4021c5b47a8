"""A look at a module's carried tensors: is each still the memory that was verified, and who wrote to it since?

Decides what torch can tell without reading weights. A tensor must have the address, dtype, shape and strides that it
was verified with, and some submodule must still hold it: whoever quantises, converts, offloads or reloads gives
parameters other memory, or modules other parameters. A layer that is only wrapped, as adapters do, changes nothing.

A tensor's count of writes (``_version``) grows with every operation in place that torch sees, also in inference mode
and through views; not with writes through ``.data``, numpy or raw kernels, nor with what batch norm does to its
statistics. Tensors made in inference mode have none. So a count that grew is a reason to digest; one that did not
proves nothing.

It must not know digests, nor what follows from a look (``coldstart/inspecting.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import torch
from torch import nn

from coldstart.glance import Glance
from coldstart.layout import Layout, Span, Tensor

ValueT = TypeVar("ValueT")


class Held(Protocol):
    """Memory that knows the module's tensors that lie in it (:class:`coldstart.arena.Arena`, ``InPlace``)."""

    @property
    def layout(self) -> Layout: ...

    def held(self) -> Sequence[tuple[torch.Tensor, Tensor]]:
        """The module's tensors and their places in the layout."""
        ...

    def address(self, placed: Tensor) -> int:
        """Where ``placed`` lies, in bytes."""
        ...


class ModuleWatch:
    """Watches ``module``; implements :class:`coldstart.glance.Watch`. Knows nothing until :meth:`begin`."""

    def __init__(self, module: nn.Module, memory: Held) -> None:
        self._module, self._memory = module, memory
        self._tensors: Sequence[tuple[torch.Tensor, Tensor]] = ()
        self._registered: frozenset[int] = frozenset()
        self._writes: dict[str, int] = {}

    def begin(self) -> None:
        """From now on: the tensors' bytes are right, or will be digested after this."""
        self._tensors = [(tensor, placed) for tensor, placed in self._memory.held() if placed.storage >= 0]
        present = set(_held_by(self._module))
        self._registered = frozenset(id(tensor) for tensor, _ in self._tensors) & present
        self._writes = {placed.name: _writes(tensor) for tensor, placed in self._tensors}

    def look(self) -> Glance:
        """See :meth:`coldstart.glance.Watch.look`."""
        present = set(_held_by(self._module))
        written: dict[str, int] = {}
        chunks: set[int] = set()
        for tensor, placed in self._tensors:
            if moved := self._moved(tensor, placed, present):
                return Glance(moved)
            count = _writes(tensor)
            if count != self._writes[placed.name]:
                written[placed.name] = count
                chunks.update(self._chunks(placed))
        return Glance("", written, tuple(sorted(chunks)))

    def proven(self, glance: Glance) -> None:
        """See :meth:`coldstart.glance.Watch.proven`."""
        self._writes.update(glance.written)

    def _moved(self, tensor: torch.Tensor, placed: Tensor, present: set[int]) -> str:
        """What has become of a tensor; empty if it is where it was."""
        if id(tensor) in self._registered and id(tensor) not in present:
            return f"{placed.name} was taken out of the module, or replaced"
        if tensor.is_meta or tensor.untyped_storage().nbytes() == 0:
            return f"the memory of {placed.name} was freed"
        if tensor.data_ptr() != self._memory.address(placed):
            return f"{placed.name} was given other memory"
        if tensor.dtype is not getattr(torch, placed.dtype):
            return f"{placed.name} became {str(tensor.dtype).removeprefix('torch.')}"
        if tensor.shape != placed.shape or tensor.stride() != placed.stride:
            return f"{placed.name} was given another shape"
        return ""

    def _chunks(self, placed: Tensor) -> range:
        """The chunks in which the tensor's storage lies."""
        layout = self._memory.layout
        span = Span(layout.starts[placed.storage], layout.storages[placed.storage])
        return range(span.offset // layout.chunk_bytes, (span.end - 1) // layout.chunk_bytes + 1)


def _writes(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _held_by(module: nn.Module) -> Iterator[int]:
    """The ids of all parameters and buffers; the host may change the module meanwhile."""
    seen: set[int] = set()
    waiting = [module]
    while waiting:
        owner = waiting.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        for tensors in (owner._parameters, owner._buffers):
            yield from [id(tensor) for tensor in _values(tensors) if tensor is not None]
        waiting.extend(child for child in _values(owner._modules) if child is not None)


def _values(held: Mapping[str, ValueT]) -> list[ValueT]:
    """A copy that another thread cannot disturb."""
    return list(held.values())
