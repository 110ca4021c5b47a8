"""The builders of the core pass the suite that plugins must pass."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from coldstart.checkpoint import read_checkpoint
from coldstart.ports import Checkpoint, Skeleton
from coldstart.skeletons.module import ModuleSkeleton
from coldstart.skeletons.tensors import TensorsSkeleton
from coldstart.testing.skeleton_contract import SkeletonContract


class Tied(nn.Module):
    """A tie, batch statistics, and a buffer that is not stored."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)


def written(directory: Path) -> Checkpoint:
    torch.manual_seed(5)
    tensors = {name: tensor for name, tensor in Tied().state_dict().items() if name != "head.weight"}
    save_file(tensors, directory / "model.safetensors")
    return read_checkpoint(directory)


class TestModuleSkeleton(SkeletonContract):
    def open_skeleton(self) -> Skeleton[nn.Module]:
        return ModuleSkeleton[nn.Module](Tied)

    def checkpoint(self, directory: Path) -> Checkpoint:
        return written(directory)


class TestModuleSkeletonThatConverts(TestModuleSkeleton):
    def open_skeleton(self) -> Skeleton[nn.Module]:
        return ModuleSkeleton[nn.Module](Tied, dtype="bfloat16")


class TestTensorsSkeleton(SkeletonContract):
    def open_skeleton(self) -> Skeleton[nn.Module]:
        return TensorsSkeleton()  # type: ignore[return-value]  # Skeleton is invariant in its module

    def checkpoint(self, directory: Path) -> Checkpoint:
        return written(directory)
