"""The skeleton named ``tensors``: a plain tree of modules made from a checkpoint's header alone.

Decides where a stored tensor stands in the tree: dots separate modules, as in every state dict.
Needs no model code, works for any safetensors checkpoint, and computes nothing, so it is what
moves weights for an engine that only wants the tensors by name. It must not know architectures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from safetensors.torch import load_file
from torch import nn

from coldstart.errors import ConfigError, SkeletonError
from coldstart.identity import Rank
from coldstart.ports import API, Availability, Checkpoint, Skeleton
from coldstart.skeletons.adoption import elements
from coldstart.skeletons.classify import Declared, Inventory, Item, take_inventory
from coldstart.skeletons.module import ModuleSkeleton


class Tensors(nn.Module):
    """The tensors of a checkpoint, by the names it gives them: ``tensors["model.norm.weight"]``.

    Also a tree of modules (``tensors.model.norm.weight``); where a name is taken by
    ``nn.Module`` itself, or is both a tensor and a module, the attribute has underscores added.
    """

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[str, str] = {}
        """Name to the path of the attribute; not to its owner, which may be this module itself."""

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Register ``tensor``; the segments of its name become modules."""
        *segments, last = name.split(".")
        owner: nn.Module = self
        path: list[str] = []
        for segment in segments:
            child = _child(owner, segment)
            owner = owner.get_submodule(child)
            path.append(child)
        attribute = _free(owner, last)
        owner.register_parameter(attribute, nn.Parameter(tensor, requires_grad=False))
        self._places[name] = ".".join([*path, attribute])

    def names(self) -> Sequence[str]:
        """Names of all tensors, as the checkpoint spells them."""
        return tuple(self._places)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.get_parameter(self._places[name])

    def forward(self) -> None:
        """There is no model code here."""
        raise NotImplementedError("a skeleton made of tensors has no forward; take the tensors by name")


class TensorsSkeleton(ModuleSkeleton[Tensors]):
    """Every stored tensor under its own name, in the order of the checkpoint's names."""

    def __init__(self, *, dtype: str = "") -> None:
        super().__init__(Tensors, name="tensors", dtype=dtype)

    def make(self, checkpoint: Checkpoint | None, rank: Rank) -> Tensors:
        if checkpoint is None:
            raise SkeletonError("the tensors skeleton is made from a checkpoint, and none was given")
        module = Tensors()
        for name in sorted(checkpoint.tensors):
            stored = checkpoint.tensors[name]
            module.add(name, torch.empty(stored.shape, dtype=getattr(torch, stored.dtype), device="meta"))
        return module

    def inventory(self, module: Tensors, declared: Declared) -> Inventory:
        """Everything is carried, under the checkpoint's names rather than the tree's."""
        carried = [Item(name, "parameter", "carried", module[name]) for name in module.names()]
        refused = [item for item in take_inventory(module).items if item.treatment == "unsupported"]
        return Inventory((*carried, *refused), {})

    def ordinary(self, checkpoint: Checkpoint) -> Tensors:
        """The tensors as ``safetensors`` loads them."""
        module = Tensors()
        loaded = {file: load_file(file) for file in checkpoint.files}
        for name, stored in checkpoint.tensors.items():
            module.add(name, loaded[stored.file][stored.name])
        return module

    def answers(self, module: Tensors, checkpoint: Checkpoint, texts: Sequence[str]) -> list[list[float]]:
        """A module that computes nothing answers with the SHA-256 of each tensor's bytes, whatever the texts."""
        found: list[list[float]] = []
        for name in sorted(module.names()):
            values = elements(module[name]).contiguous().cpu()
            found.append([float(byte) for byte in hashlib.sha256(values.numpy().data).digest()])
        return found


class Factory:
    """Opens :class:`TensorsSkeleton`."""

    api = API

    def probe(self) -> Availability:
        return Availability(True, "part of coldstart")

    def open(self, *, dtype: str = "", **options: str) -> Skeleton[Tensors]:
        if options:
            raise ConfigError(f"the tensors skeleton has no option {sorted(options)[0]!r}")
        return TensorsSkeleton(dtype=dtype)


FACTORY = Factory()


def _child(owner: nn.Module, segment: str) -> str:
    """The name of the submodule for ``segment``, which is made where it is not there yet."""
    attribute = segment or "_"
    while not isinstance(owner._modules.get(attribute), nn.Module):
        if not hasattr(owner, attribute):
            owner.add_module(attribute, nn.Module())
            break
        attribute += "_"
    return attribute


def _free(owner: nn.Module, segment: str) -> str:
    attribute = segment or "_"
    while hasattr(owner, attribute):
        attribute += "_"
    return attribute
