"""Weights that hang on plain objects, and that a builder names: they travel like any other."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from coldstart.ports import Rank
from coldstart.skeletons.adoption import adopt, in_place
from coldstart.skeletons.module import ModuleSkeleton


class State:
    def __init__(self) -> None:
        self.scales = torch.ones(3)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 2))
        self.state = State()


class Knowing(ModuleSkeleton[Scaled]):
    def held(self, module: nn.Module) -> Mapping[str, torch.Tensor]:
        return {"weight.scales": module.state.scales} if isinstance(module, Scaled) else {}


def test_they_are_carried_and_keep_their_place() -> None:
    skeleton = Knowing(Scaled)
    module = skeleton.build(None, Rank(), "cpu")
    assert [(each.name, each.treatment) for each in skeleton.classify(module).tensors] == [
        ("weight", "carried"),
        ("weight.scales", "carried"),
    ]
    arena = adopt(module, skeleton.carried(module), "cpu")
    skeleton.finalise(module)
    assert skeleton.self_check(module) == []
    (placed,) = [each for each in arena.layout.tensors if each.name == "weight.scales"]
    assert module.state.scales.data_ptr() == arena.address(placed)


def test_without_a_builder_that_names_them_they_are_made_here() -> None:
    skeleton = ModuleSkeleton(Scaled)
    found = skeleton.classify(skeleton.build(None, Rank(), "cpu"))
    assert [each.name for each in found.of("recomputed")] == ["state.scales"]


def test_those_of_a_loaded_module_are_lent_where_they_lie() -> None:
    skeleton, loaded = Knowing(Scaled), Scaled()
    wanted = skeleton.carried(skeleton.build(None, Rank(), "cpu"))
    memory = in_place(loaded, wanted, "cpu", skeleton.held(loaded))
    (placed,) = [each for each in memory.layout.tensors if each.name == "weight.scales"]
    assert memory.address(placed) == loaded.state.scales.data_ptr()
