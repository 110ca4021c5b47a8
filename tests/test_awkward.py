"""Tensors that are hard to move, through a whole cold start: storage, digest, TCP, and back into their places."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import coldstart
from coldstart import config
from coldstart.errors import SkeletonError
from coldstart.ports import Checkpoint
from coldstart.skeletons.adoption import elements
from coldstart.skeletons.module import ModuleSkeleton

SUB_BYTE = ("uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7", "int4", "float4_e2m1fn_x2")
DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "complex64", "complex128", "complex32", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", *SUB_BYTE),
)


class Awkward(nn.Module):
    """Every kind of tensor that somebody's library has sent wrong; values made from ``seed``."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(4, 3, 5, 5, generator=generator)
        self.channels_last = nn.Parameter(weight.to(memory_format=torch.channels_last))
        self.transposed = nn.Parameter(torch.randn(7, 9, generator=generator).t())
        self.scalar = nn.Parameter(torch.randn((), generator=generator))
        self.empty = nn.Parameter(torch.empty(0, 8))
        base = torch.randn(40, generator=generator)
        self.register_buffer("front", base[:25])
        self.register_buffer("back", base[10:])
        self.register_buffer("expanded", torch.randn(3, 1, generator=generator).expand(3, 6))
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = nn.Parameter(torch.randn(6, 6, generator=generator))
        self.also_tied = nn.Linear(6, 6, bias=False)
        self.also_tied.weight = self.tied.weight
        for name in DTYPES:
            raw = torch.randint(0, 256, (48,), dtype=torch.uint8, generator=generator)
            self.register_buffer(f"as_{name}", raw.view(getattr(torch, name)))
        self.register_buffer("recomputed", torch.arange(6.0), persistent=False)


def make() -> Awkward:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # complex32 says that it is experimental
        return Awkward(seed=0)


def contents(module: nn.Module) -> dict[str, tuple[str, tuple[int, ...], tuple[int, ...], bytes]]:
    """Each tensor's dtype, shape, stride and bytes."""
    tensors = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
    return {
        name: (str(t.dtype), tuple(t.shape), tuple(t.stride()), elements(t).contiguous().numpy().tobytes())
        for name, t in tensors.items()
    }


async def test_awkward_tensors_arrive_bit_for_bit(tmp_path: Path) -> None:
    """The first worker's values come from its own loader, the second one's over TCP."""
    save_file({"unused": torch.zeros(1)}, tmp_path / "model.safetensors")
    settings = config.load({"directory": str(tmp_path / "v")}, environ={})
    expected = contents(make())
    builders = [own_builder(), own_builder()]
    async with (
        coldstart.join(tmp_path, skeleton=builders[0], worker="a", settings=settings) as first,
        coldstart.join(tmp_path, skeleton=builders[1], worker="b", settings=settings) as second,
    ):
        assert (first.report.path, second.report.path) == ("storage", "peer")
        assert contents(first.module) == expected
        assert contents(second.module) == expected
        module = second.module
        assert module.tied.weight is module.also_tied.weight
        assert module.front.untyped_storage().data_ptr() == module.back.untyped_storage().data_ptr()
        assert module.front[10:].data_ptr() == module.back.data_ptr()


def own_builder() -> ModuleSkeleton[Awkward]:
    """A builder whose checkpoint does not map byte for byte: its own loader fills the tensors."""
    class Own(ModuleSkeleton[Awkward]):
        def stored_names(self, module: Awkward, checkpoint: Checkpoint) -> None:
            return None

        def load(self, module: Awkward, checkpoint: Checkpoint) -> None:
            values = make()
            ours = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            theirs = {**dict(values.named_parameters()), **dict(values.named_buffers())}
            for name, tensor in ours.items():
                elements(tensor).copy_(elements(theirs[name]))

    return Own(make, name="awkward")


@pytest.mark.parametrize("kind", ["lazy", "extra state", "sparse"])
async def test_what_cannot_be_moved_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"scale": 2}

        def set_extra_state(self, state: object) -> None:
            return

    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.eye(4).to_sparse())

    makers = {"lazy": lambda: nn.LazyLinear(4), "extra state": lambda: Extra(4, 4), "sparse": Sparse}
    names = {"lazy": "weight", "extra state": "extra", "sparse": "table"}
    save_file({"weight": torch.zeros(4, 4), "bias": torch.zeros(4)}, tmp_path / "model.safetensors")
    settings = config.load({"redis": "none"}, environ={})
    with pytest.raises(SkeletonError, match=names[kind]):
        async with coldstart.join(tmp_path, skeleton=makers[kind], settings=settings):
            raise AssertionError("not reached")
