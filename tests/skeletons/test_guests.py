"""A builder as a guest in the host's process: others' modules are not disturbed, and memory may be left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.modules import module as torch_module

from coldstart.skeletons.assembly import Order, build
from coldstart.skeletons.meta import MetaParameters
from coldstart.skeletons.module import ModuleSkeleton


def test_torchs_hooks_stay_as_they_are_from_one_build_to_the_next() -> None:
    """Torch walks them without a lock: a module that another thread is making fails when they change."""
    with MetaParameters(None).while_building():
        pass
    before = list(torch_module._global_parameter_registration_hooks)
    with MetaParameters(None).while_building():
        assert list(torch_module._global_parameter_registration_hooks) == before
        assert nn.Linear(2, 2).weight.is_meta
        with MetaParameters(torch.bfloat16).while_building():
            assert nn.Linear(2, 2).weight.dtype == torch.bfloat16
        assert nn.Linear(2, 2).weight.dtype == torch.float32
    assert list(torch_module._global_parameter_registration_hooks) == before
    assert not nn.Linear(2, 2).weight.is_meta


class Leaves(ModuleSkeleton[nn.Linear]):
    """Its module gets other memory once it serves."""

    leaves_memory = True


@pytest.mark.parametrize(("builder", "watched"), [(ModuleSkeleton, True), (Leaves, False)])
def test_memory_that_a_builder_leaves_behind_is_not_looked_for_in_its_module(
    tmp_path: Path, builder: type[ModuleSkeleton[nn.Linear]], watched: bool
) -> None:
    save_file(nn.Linear(2, 2).state_dict(), tmp_path / "model.safetensors")
    built = build(Order(tmp_path, builder(lambda: nn.Linear(2, 2))))
    assert (built.watch is not None) is watched
    assert built.self_check() == []
