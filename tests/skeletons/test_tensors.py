"""The skeleton made from a header alone: any names, any dtypes, no model code."""

from __future__ import annotations

import gc
import re
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from coldstart.checkpoint import read_checkpoint
from coldstart.errors import ConfigError, SkeletonError
from coldstart.identity import Rank
from coldstart.ports import API, Cast, SkeletonFactory
from coldstart.skeletons.adoption import adopt
from coldstart.skeletons.tensors import FACTORY, Tensors, TensorsSkeleton
from coldstart.testing.skeleton_contract import fill
from coldstart.transports.storage import Placement, place

NAMES = [
    "model.layers.0.weight",
    "model.layers.0.weight.scale",  # a tensor and a module at once
    "model.layers.10.weight",
    "forward",  # taken by nn.Module
    "model.training",
    "model.modules.keys",
    "weight_",
    "a..b",
    "",
    ".",
    "spaced name/with-odd.\u00e9",
    "module._parameters.x",
]


def tensors() -> dict[str, torch.Tensor]:
    found = {name: torch.full((2, index + 1), float(index)) for index, name in enumerate(NAMES)}
    found["counts"] = torch.arange(5)
    found["empty"] = torch.empty(0, 4)
    found["scalar"] = torch.tensor(3.0)
    found["flags"] = torch.tensor([True, False])
    found["small"] = torch.ones(3).to(torch.float8_e4m3fn)
    return found


def test_every_tensor_by_its_own_name(tmp_path: Path) -> None:
    expected = tensors()
    save_file(expected, tmp_path / "model.safetensors")
    checkpoint = read_checkpoint(tmp_path)
    skeleton = TensorsSkeleton()
    module = skeleton.build(checkpoint, Rank(), "cpu")
    arena = adopt(module, dict(skeleton.carried(module)), "cpu")
    skeleton.finalise(module)
    names = skeleton.stored_names(module, checkpoint)
    assert names is not None
    assert isinstance(place(arena.layout, names, checkpoint), Placement)
    skeleton.load(module, checkpoint)
    assert skeleton.self_check(module) == []
    assert set(module.names()) == set(expected)
    for name, tensor in expected.items():
        assert module[name].dtype == tensor.dtype
        assert torch.equal(module[name].view(torch.uint8) if name == "small" else module[name],
                           tensor.view(torch.uint8) if name == "small" else tensor), name  # fmt: skip
        assert not module[name].requires_grad
    assert torch.equal(module.get_parameter("model.layers.10.weight"), expected["model.layers.10.weight"])


def test_the_order_does_not_depend_on_the_file(tmp_path: Path) -> None:
    layouts = []
    for at, names in enumerate((NAMES, NAMES[::-1])):
        (tmp_path / str(at)).mkdir()
        save_file({name: torch.ones(2) for name in names}, tmp_path / str(at) / "model.safetensors")
        skeleton = TensorsSkeleton()
        module = skeleton.build(read_checkpoint(tmp_path / str(at)), Rank(), "cpu")
        layouts.append(adopt(module, dict(skeleton.carried(module)), "cpu").layout)
    assert layouts[0] == layouts[1]


def test_a_requested_dtype_converts_floats_only(tmp_path: Path) -> None:
    save_file({"w": torch.full((3,), 1.5), "n": torch.arange(3)}, tmp_path / "model.safetensors")
    checkpoint = read_checkpoint(tmp_path)
    skeleton = FACTORY.open(dtype="bfloat16")
    for loaded in (True, False):
        module = skeleton.build(checkpoint, Rank(), "cpu")
        arena = adopt(module, dict(skeleton.carried(module)), "cpu")  # type: ignore[arg-type]
        names = skeleton.stored_names(module, checkpoint)
        assert names == {"n": "n", "w": Cast("w")}
        placement = place(arena.layout, names, checkpoint)
        assert isinstance(placement, Placement)
        if loaded:
            skeleton.load(module, checkpoint)
        else:
            fill(arena, placement)
        assert (module["w"].dtype, module["n"].dtype) == (torch.bfloat16, torch.int64)
        assert module["w"].tolist() == [1.5, 1.5, 1.5]
        assert module["n"].tolist() == [0, 1, 2]
    assert skeleton.identity == "tensors/bfloat16"


def test_the_factory() -> None:
    factory: SkeletonFactory = FACTORY  # type: ignore[assignment]
    assert factory.api == API
    assert factory.probe().usable
    with pytest.raises(ConfigError, match="has no option 'auto'"):
        FACTORY.open(auto="AutoModel")
    with pytest.raises(SkeletonError, match=re.escape("made from a checkpoint, and none was given")):
        FACTORY.open().build(None, Rank(), "cpu")
    with pytest.raises(NotImplementedError, match="no forward"):
        Tensors()()


def test_a_module_of_tensors_is_free_as_soon_as_nobody_holds_it() -> None:
    """Its memory is a device's: it cannot wait for the garbage collector."""
    module = Tensors()
    for name in ("weight", "layer.weight", "layer.0.bias"):
        module.add(name, torch.zeros(2))
    gone = weakref.ref(module)
    gc.collect()
    gc.disable()
    try:
        del module
        assert gone() is None
    finally:
        gc.enable()
