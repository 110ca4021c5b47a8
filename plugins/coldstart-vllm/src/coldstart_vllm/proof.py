"""Whether memory that was verified may still be lent after vLLM has processed the weights for its kernels.

Decides by place and by digest: every carried tensor must still be the verified memory, in dtype, shape and
stride, and every byte must still be the published truth. Where vLLM has replaced tensors, what is left
on the arena is moved off it, or one small norm would hold the memory of all the weights.
"""

from __future__ import annotations

import torch
from torch import nn

from coldstart import Replica
from coldstart.identity import Truth
from coldstart.layout import Span, Tensor
from coldstart.skeletons.adoption import exchange


def moved(module: nn.Module, replica: Replica) -> tuple[str, ...]:
    """Carried tensors that no longer are what was verified: gone, elsewhere, or of another shape."""
    held, expected = _held(module), _places(replica)
    return tuple(name for name, place in expected.items() if name not in held or _place(held[name]) != place)


def root_of(replica: Replica) -> str:
    """The name of all bytes as they are in memory now: the report's root, if they still are the truth. Blocks."""
    built = replica.built
    layout, digester = built.arena.layout, built.digester
    digests = b"".join(digester.digest(built.arena, layout.chunk(index)) for index in range(layout.chunks))
    return Truth(built.shard.key, layout, digester.algorithm, digests).root


def move_off(module: nn.Module, replica: Replica) -> None:
    """Give the carried tensors that still lie on the arena memory of their own, with the same values."""
    held = _held(module)
    with torch.no_grad(), torch.inference_mode(False):
        for name, place in _places(replica).items():
            tensor = held.get(name)
            if tensor is not None and _place(tensor) == place:
                exchange(module, tensor, tensor.detach().clone(memory_format=torch.preserve_format))


_Place = tuple[str, tuple[int, ...], tuple[int, ...], int]
"""Dtype, shape, stride and address."""


def _places(replica: Replica) -> dict[str, _Place]:
    """Where the arena has each carried tensor that has bytes."""
    arena = replica.built.arena
    starts = arena.layout.starts

    def address(placed: Tensor) -> int:
        return arena.regions(Span(starts[placed.storage] + placed.offset, 1))[0].address

    return {
        placed.name: (placed.dtype, placed.shape, placed.stride, address(placed))
        for placed in arena.layout.tensors
        if placed.storage >= 0
    }


def _place(tensor: torch.Tensor) -> _Place:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.data_ptr()


def _held(module: nn.Module) -> dict[str, torch.Tensor]:
    held: dict[str, torch.Tensor] = dict(module.named_buffers(remove_duplicate=False))
    held.update(module.named_parameters(remove_duplicate=False))
    return held
