"""Extra state: what a module keeps outside its tensors, carried as bytes where the builder knows how.

Decides that state travels only through a codec that the builder declares; nothing from a peer is ever
unpickled. The bytes have a tensor of their own in the stream, which must be as long in every worker.
Which modules keep extra state is found here, what becomes of it without a codec in ``classify.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from coldstart.errors import SkeletonError


@dataclass(frozen=True)
class ExtraState:
    """How extra state becomes bytes and back.

    Args:
        encode: what ``get_extra_state`` gives, as bytes; for one architecture always equally many.
        decode: bytes that a peer or the checkpoint gave, verified but from outside: it must not run code, and
            what it raises fails the start. Its result goes to ``set_extra_state``.
    """

    encode: Callable[[object], bytes]
    decode: Callable[[bytes], object]


def keepers(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Submodules that keep extra state, under every name."""
    for path, owner in module.named_modules(remove_duplicate=False):
        if type(owner).get_extra_state is not nn.Module.get_extra_state:
            yield name_of(path), owner


def name_of(path: str) -> str:
    """The name of a module's extra state, as state dicts spell it."""
    return f"{path}._extra_state" if path else "_extra_state"


def encoded(module: nn.Module, codec: ExtraState, device: torch.device) -> dict[str, torch.Tensor]:
    """The extra state of each submodule, as it is now, in a tensor; one for all names of a submodule.

    Raises:
        SkeletonError: the module or the codec cannot say.
    """
    tensors: dict[int, torch.Tensor] = {}
    found: dict[str, torch.Tensor] = {}
    for name, owner in keepers(module):
        if id(owner) not in tensors:
            try:
                data: object = codec.encode(owner.get_extra_state())
            except Exception as error:
                raise SkeletonError(f"{name} cannot be written before there are weights: {error!r}") from error
            if not isinstance(data, bytes | bytearray):
                raise SkeletonError(f"{name} was encoded as a {type(data).__name__}", advice="encode must give bytes")
            tensors[id(owner)] = torch.tensor(list(data), dtype=torch.uint8, device=device)
        found[name] = tensors[id(owner)]
    return found


def put_back(module: nn.Module, codec: ExtraState, arrived: Mapping[str, torch.Tensor]) -> None:
    """Give submodules the state that has arrived."""
    for name, owner in keepers(module):
        if name in arrived:
            owner.set_extra_state(codec.decode(bytes(arrived[name].cpu().numpy())))
