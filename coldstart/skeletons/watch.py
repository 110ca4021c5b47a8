"""A look at a module's carried tensors: is each still the memory that was verified, and who wrote to it since?

Decides what torch can tell without reading weights. A tensor must have the address, dtype, shape and strides that it
was verified with, and some submodule must still hold it: whoever quantises, converts, offloads or reloads gives
parameters other memory, or modules other parameters. A layer that is only wrapped, as adapters do, changes nothing.
On a device there must also be memory behind the address still.

A tensor's count of writes (``_version``) grows with every operation in place that torch sees, also in inference mode
and through views; not with writes through ``.data``, numpy or raw kernels, nor with what batch norm does to its
statistics. Tensors made in inference mode have none. So a count that grew is a reason to digest; one that did not
proves nothing.

It must not know digests, nor what follows from a look (``coldstart/inspecting.py``).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple, Protocol

import torch
from torch import nn

from coldstart.driver import is_mapped
from coldstart.glance import Glance
from coldstart.layout import Layout, Span, Tensor
from coldstart.skeletons.wrappers import is_wrapper, parts


class Held(Protocol):
    """Memory that knows the module's tensors that lie in it (:class:`coldstart.arena.Arena`, ``InPlace``)."""

    @property
    def layout(self) -> Layout: ...

    @property
    def device(self) -> str: ...

    def held(self) -> Sequence[tuple[torch.Tensor, Tensor]]:
        """The module's tensors and their places in the layout."""
        ...

    def address(self, placed: Tensor) -> int:
        """Where ``placed`` lies, in bytes."""
        ...


class _Seen(NamedTuple):
    """One tensor as it was when watching began."""

    tensor: torch.Tensor
    placed: Tensor
    address: int
    dtype: torch.dtype
    registered: bool
    """Whether a submodule held it; what hides elsewhere cannot be missed there."""


class ModuleWatch:
    """Watches ``module``; implements :class:`coldstart.glance.Watch`. Knows nothing until :meth:`begin`."""

    def __init__(self, module: nn.Module, memory: Held) -> None:
        self._module, self._memory = module, memory
        self._seen: Sequence[_Seen] = ()
        self._writes: dict[str, int] = {}

    def begin(self) -> None:
        """From now on: the tensors' bytes are right, or will be digested after this."""
        held, present = [item for item in self._memory.held() if item[1].storage >= 0], _held_by(self._module)
        self._writes = {placed.name: _writes(tensor) for tensor, placed in held}
        self._seen = [
            _Seen(tensor, placed, self._memory.address(placed), tensor.dtype, id(tensor) in present)
            for tensor, placed in held
        ]

    def look(self) -> Glance:
        """See :meth:`coldstart.glance.Watch.look`."""
        present, on_device = _held_by(self._module), self._memory.device != "cpu"
        written: dict[str, int] = {}
        chunks: set[int] = set()
        for seen in self._seen:
            tensor, placed, address, dtype, registered = seen
            if (
                (registered and id(tensor) not in present)
                or tensor.data_ptr() != address
                or tensor.dtype is not dtype
                or tensor.shape != placed.shape
                or tensor.stride() != placed.stride
            ):
                return Glance(_moved(seen, present))
            if on_device and not is_mapped(address):
                return Glance(f"the memory of {placed.name} was taken away")
            count = _writes(tensor)
            if count != self._writes[placed.name]:
                written[placed.name] = count
                chunks.update(self._chunks(placed))
        return Glance("", written, tuple(sorted(chunks)))

    def proven(self, glance: Glance) -> None:
        """See :meth:`coldstart.glance.Watch.proven`."""
        self._writes.update(glance.written)

    def _chunks(self, placed: Tensor) -> range:
        """The chunks in which the tensor's storage lies."""
        layout = self._memory.layout
        span = Span(layout.starts[placed.storage], layout.storages[placed.storage])
        return range(span.offset // layout.chunk_bytes, (span.end - 1) // layout.chunk_bytes + 1)


def _moved(seen: _Seen, present: Set[int]) -> str:
    """What has become of a tensor that is not as it was."""
    tensor, name = seen.tensor, seen.placed.name
    if seen.registered and id(tensor) not in present:
        return f"{name} was taken out of the module, or replaced"
    if tensor.is_meta or tensor.untyped_storage().nbytes() == 0:
        return f"the memory of {name} was freed"
    if tensor.dtype is not seen.dtype:
        return f"{name} became {str(tensor.dtype).removeprefix('torch.')}"
    if tensor.shape != seen.placed.shape or tensor.stride() != seen.placed.stride:
        return f"{name} was given another shape"
    return f"{name} was given other memory"


def _writes(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _held_by(module: nn.Module) -> Set[int]:
    """The ids of all parameters, buffers and parts of such. The host may change the module, so each dict is copied."""
    found: set[int] = set()
    seen = {id(module)}
    waiting = [module]
    while waiting:
        owner = waiting.pop()
        for tensor in (*owner._parameters.values(), *owner._buffers.values()):
            found.add(id(tensor))
            if tensor is not None and is_wrapper(tensor):
                found.update(map(id, parts(tensor).values()))
        for child in list(owner._modules.values()):
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)
    return found
