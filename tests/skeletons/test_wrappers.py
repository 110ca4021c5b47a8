"""Weights that are tensors made of tensors: they travel as their parts, and are made again around these."""

from __future__ import annotations

import enum
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import coldstart
from coldstart import config
from coldstart.arena import Arena
from coldstart.checkpoint import read_checkpoint
from coldstart.errors import ColdstartError, SkeletonError
from coldstart.identity import Rank
from coldstart.ports import Checkpoint
from coldstart.skeletons.adoption import adopt, in_place
from coldstart.skeletons.module import ModuleSkeleton
from coldstart.skeletons.watch import ModuleWatch
from coldstart.skeletons.wrappers import described, digest_of, is_wrapper, made_again, parts

SETTINGS: Mapping[str, object] = {"block": [1, 4], "dtype": torch.float32}


class Packed(torch.Tensor):
    """Small integers with a scale for each row, as quantised weights are."""

    low: torch.Tensor
    scale: torch.Tensor
    context: object

    @staticmethod
    def __new__(cls, low: torch.Tensor, scale: torch.Tensor, context: object = SETTINGS) -> Packed:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, low.shape, dtype=torch.float32, device=low.device
        )
        assert isinstance(made, Packed)
        made.low, made.scale, made.context = low, scale, context
        return made

    def __tensor_flatten__(self) -> tuple[list[str], object]:
        return ["low", "scale"], self.context

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], context: object, *rest: object) -> Packed:
        return Packed(inner["low"], inner["scale"], context)

    @classmethod
    def __torch_dispatch__(cls, func: object, types: object, args: tuple[object, ...], kwargs: object = None) -> object:
        if func is torch.ops.aten.detach.default:
            (held,) = args
            assert isinstance(held, Packed)
            return Packed(held.low, held.scale, held.context)
        raise NotImplementedError(func)


def packed(context: object = SETTINGS) -> Packed:
    return Packed(torch.randint(-127, 127, (3, 4), dtype=torch.int8), torch.rand(3, 1), context)


class Net(nn.Module):
    """One packed weight under two names, and one in a buffer."""

    def __init__(self, make: Callable[[], torch.Tensor] = packed) -> None:
        super().__init__()
        made = make()
        self.weight = made if isinstance(made, nn.Parameter) else nn.Parameter(made)
        self.again = self.weight
        self.bias = nn.Parameter(torch.randn(3))
        self.register_buffer("table", packed())

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        weight, table = self.weight, self.table
        assert isinstance(weight, Packed)
        assert isinstance(table, Packed)
        return data @ (weight.low * weight.scale + table.low * table.scale).T + self.bias


CARRIED = [
    "weight@low", "weight@scale", "again@low", "again@scale", "bias", "table@low", "table@scale",
]  # fmt: skip
DATA = torch.linspace(-1, 1, 8).reshape(2, 4)


def builder(factory: Callable[[], nn.Module] = Net) -> ModuleSkeleton[nn.Module]:
    return ModuleSkeleton(factory, tensor_subclasses=True)


def saved(module: nn.Module, directory: Path) -> Checkpoint:
    """A checkpoint of the parts, under the names that they are carried under, each once."""
    carried = builder().carried(module)
    kept = {name: tensor for name, tensor in carried.items() if not name.startswith("again")}
    save_file(kept, directory / "model.safetensors")
    return read_checkpoint(directory)


def adopted(checkpoint: Checkpoint | None = None) -> tuple[ModuleSkeleton[nn.Module], nn.Module, Arena]:
    skeleton = builder()
    module = skeleton.build(checkpoint, Rank(), "cpu")
    arena = adopt(module, skeleton.carried(module), "cpu")
    skeleton.finalise(module)
    return skeleton, module, arena


def test_parts_are_carried_and_loaded(tmp_path: Path) -> None:
    ordinary = Net()
    checkpoint = saved(ordinary, tmp_path)
    skeleton, module, _ = adopted(checkpoint)
    assert list(skeleton.carried(module)) == CARRIED
    assert set(skeleton.stored_names(module, checkpoint) or {}) == {name for name in CARRIED if "again" not in name}
    skeleton.load(module, checkpoint)
    assert skeleton.self_check(module) == []
    assert torch.equal(module(DATA), ordinary(DATA))


async def test_a_joiner_gets_the_parts_from_a_peer(tmp_path: Path) -> None:
    ordinary = Net()
    saved(ordinary, tmp_path)
    settings = config.load({"directory": str(tmp_path / "v"), "drain": 2.0}, environ={})
    async with (
        coldstart.join(tmp_path, skeleton=builder(), worker="a", settings=settings) as a,
        coldstart.join(tmp_path, skeleton=builder(), worker="b", settings=settings) as b,
    ):
        assert (a.report.path, b.report.path) == ("storage", "peer")
        assert a.report.whole_read == ""
        for replica in (a, b):
            assert torch.equal(replica.module(DATA), ordinary(DATA))


def test_the_parameter_stays_the_same_object_with_its_flags_and_its_ties() -> None:
    skeleton = builder()
    module = skeleton.build(None, Rank(), "cpu")
    weight = module.get_parameter("weight")
    weight.requires_grad_(False)
    vars(weight)["tag"] = "kept"
    arena = adopt(module, skeleton.carried(module), "cpu")
    assert module.get_parameter("weight") is weight
    assert module.get_parameter("again") is weight
    assert isinstance(weight, nn.Parameter)
    assert (weight.requires_grad, vars(weight)["tag"], type(weight)) == (False, "kept", Packed)
    assert len(arena.layout.storages) == 5
    assert len({part.untyped_storage().data_ptr() for part in parts(weight).values()}) == 1


def test_a_wrapper_goes_where_its_parts_go() -> None:
    """A wrapper has a device of its own, which its parts alone do not change."""

    def make() -> nn.Module:
        with torch.device("meta"):
            return Net(lambda: Packed(torch.empty(3, 4, dtype=torch.int8), torch.empty(3, 1)))

    skeleton = builder(make)
    module = skeleton.build(None, Rank(), "cpu")
    assert module.get_parameter("weight").is_meta
    adopt(module, skeleton.carried(module), "cpu")
    assert module.get_parameter("weight").device == torch.device("cpu")
    assert skeleton.self_check(module) == []


def test_a_wrapper_that_torch_does_not_let_change_is_replaced() -> None:
    skeleton = builder()
    module = skeleton.build(None, Rank(), "cpu")
    weight = module.get_parameter("weight")
    watching = weakref.ref(weight), weakref.ref(parts(weight)["low"])
    adopt(module, skeleton.carried(module), "cpu")
    assert watching[0]() is not module.get_parameter("weight")
    assert module.get_parameter("weight") is module.get_parameter("again")
    assert skeleton.self_check(module) == []


# ------------------------------------------------------------------------------------------- what is refused


def hiding() -> nn.Parameter:
    made = nn.Parameter(packed())
    vars(made)["rows"] = torch.ones(3)
    return made


def hiding_deeper() -> nn.Parameter:
    made = nn.Parameter(packed())
    vars(made)["cache"] = {"rows": [torch.ones(3)]}
    return made


REFUSED: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "nested": (
        lambda: Packed(packed(), torch.rand(3, 1)),
        "weight is a Packed, a tensor made of other tensors, whose low is made of others again",
    ),
    "hidden": (hiding, "weight is a Packed, a tensor made of other tensors, which keeps rows besides those it names"),
    "hidden deeper": (hiding_deeper, r"weight\.cache\['rows'\]\[0\] is kept by a tensor made of others besides those"),
    "a tensor in the context": (
        lambda: packed({"zero": torch.zeros(1)}),
        "weight is a Packed, a tensor made of other tensors and of tensors without a name, by which workers cannot be",
    ),
    "an object in the context": (
        lambda: packed([threading.Lock()]),
        "weight is a Packed, a tensor made of other tensors and of a lock, by which workers cannot be compared",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_made_again_is_refused(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(SkeletonError, match=words):
        builder(lambda: Net(make)).build(None, Rank(), "cpu")


def test_a_part_that_has_the_name_of_a_parameter_is_refused() -> None:
    def make() -> nn.Module:
        module = Net()
        module.register_parameter("weight@scale", nn.Parameter(torch.zeros(1)))
        return module

    with pytest.raises(SkeletonError, match="weight@scale is the name of two tensors; rename one"):
        builder(make).build(None, Rank(), "cpu")


def test_a_builder_must_say_that_it_can() -> None:
    with pytest.raises(SkeletonError, match="weight is a Packed, a tensor made of other tensors;"):
        ModuleSkeleton(Net).build(None, Rank(), "cpu")


def test_what_is_not_stored_or_is_for_serving_stays_whole() -> None:
    def make() -> nn.Module:
        module = Net()
        module.register_buffer("local", packed(), persistent=False)
        module.register_buffer("cache", packed())
        return module

    skeleton = ModuleSkeleton(make, tensor_subclasses=True, runtime=["cache"])
    found = {each.name: each.treatment for each in skeleton.classify(skeleton.build(None, Rank(), "cpu")).tensors}
    assert found == {**dict.fromkeys(CARRIED, "carried"), "local": "recomputed", "cache": "runtime"}


# ------------------------------------------------------------------------------------------- who may exchange


class Kernel(enum.Enum):
    AUTO = "auto"
    FAST = "fast"


@dataclass(frozen=True)
class Activations:
    rows: tuple[int, ...]
    kernel: Kernel = Kernel.AUTO


CONTEXTS: list[object] = [
    None, {}, {"block": [1, 4]}, {"block": [1, 8]}, {"block": [1, 4], "dtype": torch.float16},
    {"block": [1, 4], "dtype": torch.bfloat16}, Activations((1, 2)), Activations((1, 3)),
    Activations((1, 2), Kernel.FAST), {"kind": int}, {"kind": float}, {1, 2}, "auto", Kernel.AUTO, torch.Size((1,)),
]  # fmt: skip


def test_other_contexts_are_other_skeletons() -> None:
    def identity(context: object) -> str:
        skeleton = builder(lambda: Net(lambda: packed(context)))
        skeleton.build(None, Rank(), "cpu")
        return skeleton.identity

    made = [identity(context) for context in CONTEXTS]
    assert len(set(made)) == len(CONTEXTS)
    assert made == [identity(context) for context in CONTEXTS]
    assert identity({"b": 1, "a": 2}) == identity({"a": 2, "b": 1})


def test_a_weight_that_became_another_kind_is_not_served() -> None:
    skeleton, module, _ = adopted()
    weight = module.get_parameter("weight")
    assert isinstance(weight, Packed)
    weight.context = {"block": [1, 2]}
    assert skeleton.self_check(module) == ["its tensor subclasses are not those that it was built with"]


def test_a_module_without_wrappers_keeps_its_identity() -> None:
    one, two = builder(lambda: nn.Linear(2, 2)), ModuleSkeleton(lambda: nn.Linear(2, 2))
    one.build(None, Rank(), "cpu")
    assert one.identity.rpartition(".")[0] == two.identity.rpartition(".")[0]
    assert digest_of(nn.Linear(2, 2)) == ""


def test_made_again_is_the_same_but_for_the_parts() -> None:
    one = nn.Parameter(packed())
    two = made_again(one, {name: part.clone() for name, part in parts(one).items()})
    assert described(one) == described(two)
    assert isinstance(two, nn.Parameter)
    assert is_wrapper(two)
    assert not is_wrapper(torch.zeros(1))


# --------------------------------------------------------------------------------------------- lending, watching


def test_a_loaded_module_lends_its_parts_where_they_lie() -> None:
    skeleton = builder()
    loaded = Net().eval()
    memory = in_place(loaded, skeleton.carried(skeleton.build(None, Rank(), "cpu")), "cpu")
    low = parts(loaded.weight)["low"]
    assert memory.address(memory.layout.tensors[0]) == low.data_ptr()


async def test_a_loaded_module_of_another_kind_is_not_lent(tmp_path: Path) -> None:
    saved(Net(), tmp_path)
    settings = config.load({"directory": str(tmp_path / "v"), "drain": 2.0}, environ={})
    with pytest.raises(ColdstartError, match="weight of the loaded module is not what its builder makes of it"):
        async with coldstart.lend(Net(lambda: packed({})), tmp_path, skeleton=builder(), settings=settings):
            raise AssertionError("not reached")


def test_a_look_sees_writes_to_parts_and_wrappers_that_are_replaced() -> None:
    _, module, arena = adopted()
    watch = ModuleWatch(module, arena)
    watch.begin()
    assert not watch.look().written
    parts(module.get_parameter("weight"))["scale"].mul_(2)
    assert set(watch.look().written) == {"weight@scale"}
    module.weight = module.again = nn.Parameter(packed())
    assert watch.look().moved == "weight@low was taken out of the module, or replaced"
