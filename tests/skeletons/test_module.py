"""Skeletons from factories: equal to the ordinary module after its bytes are copied, or a clear refusal."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from coldstart.arena import Arena
from coldstart.checkpoint import read_checkpoint
from coldstart.errors import ConfigError, SkeletonError
from coldstart.identity import Rank
from coldstart.ports import Checkpoint, Skeleton
from coldstart.skeletons.adoption import adopt, elements
from coldstart.skeletons.extra import ExtraState as Codec
from coldstart.skeletons.module import ModuleSkeleton
from coldstart.testing.skeleton_contract import fill
from coldstart.transports.storage import Placement, place


class Awkward(nn.Module):
    """Ties, views, constants of every kind, a scale in a plain attribute, batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.LayerNorm(8))
        self.shared = self.inner[0]
        self.register_buffer("positions", torch.arange(8), persistent=False)
        self.register_buffer("frequencies", 1.0 / 10 ** torch.linspace(0, 1, 8))
        self.register_buffer("rows", self.embed.weight.detach()[2:5], persistent=False)
        self.scale = torch.tensor(8.0).sqrt()
        self.tables = {"masks": [torch.ones(3, 3).tril()]}
        self.lookup = (self.embed.weight,)
        self.register_parameter("nothing", None)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.inner(self.embed(tokens) * self.scale + self.positions * self.frequencies)
        return self.head(hidden) + self.rows.sum() + self.tables["masks"][0].sum()


TOKENS = torch.tensor([1, 5, 10])


def save(module: nn.Module, directory: Path, *, without: str = "~") -> Checkpoint:
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in module.state_dict().items():
        known = any(tensor.data_ptr() == other.data_ptr() for other in tensors.values() if tensor.numel())
        if not known and without not in name:
            tensors[name] = tensor
    save_file(tensors, directory / "model.safetensors")
    return read_checkpoint(directory)


def built(skeleton: Skeleton[nn.Module], checkpoint: Checkpoint | None) -> tuple[nn.Module, Arena]:
    module = skeleton.build(checkpoint, Rank(), "cpu")
    arena = adopt(module, dict(skeleton.carried(module)), "cpu")
    skeleton.finalise(module)
    return module, arena


def copy_bytes(source: nn.Module, target: nn.Module, skeleton: Skeleton[nn.Module]) -> None:
    everything = {
        **dict(source.named_parameters(remove_duplicate=False)),
        **dict(source.named_buffers(remove_duplicate=False)),
    }
    for name, tensor in skeleton.carried(target).items():
        elements(tensor).copy_(elements(everything[name]))


@pytest.fixture
def ordinary() -> Awkward:
    torch.manual_seed(3)
    return Awkward().eval()


def test_is_equal_to_the_ordinary_module(ordinary: Awkward) -> None:
    skeleton = ModuleSkeleton(Awkward)
    assert isinstance(skeleton, Skeleton)
    module, arena = built(skeleton, None)
    assert set(skeleton.carried(module)) == {
        "embed.weight", "head.weight", "frequencies",
        *(f"{path}.{name}" for path in ("inner.0", "inner.1", "inner.2", "shared") for name in ("weight", "bias")),
        "inner.1.running_mean", "inner.1.running_var", "inner.1.num_batches_tracked",
    }  # fmt: skip
    assert not module.training
    assert module.head.weight is module.embed.weight is module.lookup[0]
    assert module.inner[0] is module.shared
    copy_bytes(ordinary, module, skeleton)
    assert skeleton.self_check(module) == []
    assert torch.equal(module(TOKENS), ordinary(TOKENS))
    assert module.rows.untyped_storage().data_ptr() == module.embed.weight.untyped_storage().data_ptr()
    assert arena.layout.payload == (11 * 8 + 8 + 8 * 8 + 8 + 4 * 8 + 2 * 8) * 4 + 8


def test_parameters_have_no_memory_before_adoption() -> None:
    module = ModuleSkeleton(Awkward).build(None, Rank(), "cpu")
    assert all(parameter.is_meta for parameter in module.parameters())
    assert torch.equal(module.frequencies, Awkward().frequencies)
    assert torch.equal(module.scale, torch.tensor(8.0).sqrt())
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_two_builds_have_the_same_layout() -> None:
    _, one = built(ModuleSkeleton(Awkward), None)
    _, two = built(ModuleSkeleton(Awkward), None)
    assert one.layout.digest == two.layout.digest


def test_a_checkpoint_that_maps_one_to_one(ordinary: Awkward, tmp_path: Path) -> None:
    checkpoint = save(ordinary, tmp_path)
    skeleton = ModuleSkeleton(Awkward)
    module, arena = built(skeleton, checkpoint)
    names = skeleton.stored_names(module, checkpoint)
    assert names is not None
    assert isinstance(place(arena.layout, names, checkpoint), Placement)
    skeleton.load(module, checkpoint)
    assert skeleton.self_check(module) == []
    assert torch.equal(module(TOKENS), ordinary(TOKENS))


def test_buffers_that_the_checkpoint_lacks_are_computed_here(ordinary: Awkward, tmp_path: Path) -> None:
    checkpoint = save(ordinary, tmp_path, without="frequencies")
    skeleton = ModuleSkeleton(Awkward)
    module, _ = built(skeleton, checkpoint)
    assert "frequencies" not in skeleton.carried(module)
    assert skeleton.stored_names(module, checkpoint) is not None
    skeleton.load(module, checkpoint)
    assert torch.equal(module(TOKENS), ordinary(TOKENS))
    assert skeleton.self_check(module) == []


def test_parameters_that_the_checkpoint_lacks_are_named(ordinary: Awkward, tmp_path: Path) -> None:
    checkpoint = save(ordinary, tmp_path, without="inner.2")
    skeleton = ModuleSkeleton(Awkward)
    module, _ = built(skeleton, checkpoint)
    assert skeleton.stored_names(module, checkpoint) is None
    with pytest.raises(SkeletonError, match=r"the checkpoint has no inner\.2\.weight, inner\.2\.bias; check"):
        skeleton.load(module, checkpoint)


@pytest.mark.parametrize("dtype", ["", "bfloat16"])
def test_ties_that_are_stored_twice_must_agree(ordinary: Awkward, tmp_path: Path, dtype: str) -> None:
    tensors = {name: tensor.clone() for name, tensor in ordinary.state_dict().items()}
    for other, message in ((0.0, ""), (1.0, r"head\.weight is tied to embed\.weight but the checkpoint")):
        save_file({**tensors, "head.weight": tensors["head.weight"] + other}, tmp_path / "model.safetensors")
        checkpoint, skeleton = read_checkpoint(tmp_path), ModuleSkeleton(Awkward, dtype=dtype)
        module, _ = built(skeleton, checkpoint)
        if message:
            with pytest.raises(SkeletonError, match=message):
                skeleton.load(module, checkpoint)
        else:
            skeleton.load(module, checkpoint)
            assert torch.equal(module.head.weight, tensors["embed.weight"].to(module.head.weight.dtype))


def test_conversion_only_when_asked_for(ordinary: Awkward, tmp_path: Path) -> None:
    stored = copy.deepcopy(ordinary).to(torch.bfloat16)
    checkpoint = save(stored, tmp_path)
    plain = ModuleSkeleton(Awkward)
    module, _ = built(plain, checkpoint)
    assert plain.stored_names(module, checkpoint) is None
    with pytest.raises(SkeletonError, match=r"frequencies is float32 \[8\] in the module but frequencies is bfloat16"):
        plain.load(module, checkpoint)

    skeleton = ModuleSkeleton(Awkward, dtype="float16")
    for loaded in (True, False):
        module, arena = built(skeleton, checkpoint)
        assert {parameter.dtype for parameter in module.parameters()} == {torch.float16}
        assert module.frequencies.dtype == torch.float32, "buffers keep their dtype"
        placement = place(arena.layout, skeleton.stored_names(module, checkpoint) or {}, checkpoint)
        assert isinstance(placement, Placement), placement
        if loaded:
            skeleton.load(module, checkpoint)
        else:
            fill(arena, placement)
        assert torch.equal(module.embed.weight, stored.embed.weight.to(torch.float16))
        assert torch.equal(module.frequencies, stored.frequencies.float())


def test_prefix_and_wrappers(ordinary: Awkward, tmp_path: Path) -> None:
    wrapped = nn.Module()
    wrapped.model = nn.Module()
    wrapped.model._orig_mod = ordinary
    checkpoint = save(wrapped, tmp_path)
    skeleton = ModuleSkeleton(Awkward, checkpoint_prefix="model.")
    module, _ = built(skeleton, checkpoint)
    names = skeleton.stored_names(module, checkpoint)
    assert names is not None
    assert names["embed.weight"] == "model._orig_mod.embed.weight"
    assert skeleton.identity != ModuleSkeleton(Awkward).identity


def test_permuted_weights_are_copied_not_placed(tmp_path: Path) -> None:
    def convolution() -> nn.Module:
        return nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)

    ordinary = convolution()
    save_file({name: tensor.contiguous() for name, tensor in ordinary.state_dict().items()}, tmp_path / "m.safetensors")
    checkpoint = read_checkpoint(tmp_path)
    skeleton = ModuleSkeleton(convolution, name="convolution")
    module, _ = built(skeleton, checkpoint)
    assert skeleton.stored_names(module, checkpoint) is None
    skeleton.load(module, checkpoint)
    assert module.weight.stride() == ordinary.weight.stride()
    assert torch.equal(module.weight, ordinary.weight)


# ---------------------------------------------------------------------- factories that are odd


class LooksAtValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.bound = self.weight.max().item()


class SharedBeforehand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        values = torch.randn(6)
        self.whole = nn.Parameter(values)
        self.first_part = nn.Parameter(values[:3])
        self.turned = nn.Linear(3, 2)
        self.turned_back = nn.Parameter(self.turned.weight.t())


class BehindTheHook(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._parameters["weight"] = nn.Parameter(torch.ones(4))
        self.legacy = nn.Parameter(torch.Tensor(3))
        self.register_buffer("table", torch.Tensor([1.0, 2.0]), persistent=False)


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)),
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
        nn.utils.spectral_norm(nn.Linear(4, 3)),
    )


@pytest.mark.parametrize("factory", [LooksAtValues, SharedBeforehand, BehindTheHook, normalised])
def test_odd_factories(factory: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    ordinary = factory().eval()
    skeleton = ModuleSkeleton(factory)
    fresh = skeleton.build(None, Rank(), "cpu")
    assert all(parameter.is_meta for parameter in fresh.parameters())
    module, _ = built(skeleton, None)
    copy_bytes(ordinary, module, skeleton)
    assert skeleton.self_check(module) == []
    if factory is normalised:
        data = torch.randn(2, 3)
        assert torch.equal(module(data), ordinary(data))
    if isinstance(module, SharedBeforehand):
        assert module.whole.data_ptr() == module.first_part.data_ptr()
        assert module.turned.weight.data_ptr() == module.turned_back.data_ptr()
    if isinstance(module, LooksAtValues):
        assert module.bound == 1.0


# -------------------------------------------------------------------------------- refusals


class ExtraState(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {}


class ComputedFromParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.norm = self.weight.norm()


class HiddenModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(2, 2)]


class PartlyCarried(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        base = torch.zeros(10)
        self.register_buffer("base", base, persistent=False)
        self.register_buffer("part", base[:4])


def broken() -> nn.Module:
    raise KeyError("no such layer")


def wordy() -> nn.Module:
    raise ValueError("\nno such value of 'size':\n    a number is needed\n    here\n")


def silent() -> nn.Module:
    raise StopIteration


class PreparedBadly(ModuleSkeleton[nn.Module]):
    def prepare(self, module: nn.Module) -> None:
        next(iter(module.children()))


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda: nn.Sequential(ExtraState(2, 2)), r"0\._extra_state is refused: 0 \(ExtraState\) keeps"),
        (lambda: nn.LazyLinear(3), r"weight is an uninitialised parameter of a lazy module"),
        (ComputedFromParameters, r"norm was computed from parameters, which have no values yet"),
        (HiddenModule, r"layers\[0\] is a module with tensors in a plain attribute; register it"),
        (PartlyCarried, r"base is not carried but holds the memory of part, which is"),
        (broken, r"broken cannot make its module: KeyError: 'no such layer'"),
        (wordy, r"wordy cannot make its module: ValueError: no such value of 'size': a number is needed$"),
        (silent, r"silent cannot make its module: StopIteration$"),
    ],
)
def test_refusals_name_the_state(factory: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(SkeletonError, match=message):
        ModuleSkeleton(factory).build(None, Rank(), "cpu")


def test_a_builder_that_breaks_after_its_factory_is_named() -> None:
    with pytest.raises(SkeletonError, match=r"Linear cannot make its module: StopIteration$"):
        PreparedBadly(lambda: nn.Linear(2, 2), name="Linear").build(None, Rank(), "cpu")


@pytest.mark.parametrize("tolerance", [-0.1, float("nan"), float("inf"), "0.1", None])
def test_a_tolerance_is_a_share(tolerance: float) -> None:
    with pytest.raises(ConfigError, match=f"tolerance is {tolerance!r}; give a share"):
        ModuleSkeleton(Awkward, tolerance=tolerance)


def test_one_text_is_no_collection_of_patterns() -> None:
    with pytest.raises(ConfigError, match=r"runtime is 'layers\.\*\.cache'; it takes several patterns"):
        ModuleSkeleton(Awkward, runtime="layers.*.cache")


@pytest.mark.parametrize("given", ["text", None, [999], 3])
def test_extra_state_is_encoded_as_bytes(given: object) -> None:
    codec = Codec(lambda state: cast("bytes", given), lambda data: data)
    with pytest.raises(SkeletonError, match=rf"_extra_state was encoded as a {type(given).__name__}; encode must give"):
        ModuleSkeleton(lambda: ExtraState(2, 2), extra_state=codec).build(None, Rank(), "cpu")


class NeverEvaluated(nn.Linear):
    def train(self, mode: bool = True) -> NeverEvaluated:
        raise RuntimeError("no other mode")


def test_a_module_without_evaluation_mode_is_named() -> None:
    skeleton = ModuleSkeleton(lambda: NeverEvaluated(2, 2), name="never")
    module = skeleton.build(None, Rank(), "cpu")
    adopt(module, skeleton.carried(module), "cpu")
    with pytest.raises(SkeletonError, match="never cannot make its module: RuntimeError: no other mode"):
        skeleton.finalise(module)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ConfigError, match="'int8' is not a floating-point dtype"):
        ModuleSkeleton(Awkward, dtype="int8")


# ------------------------------------------------------------------------------ self-check


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda m: setattr(m.head, "weight", nn.Parameter(m.head.weight.clone())), r"head\.weight: aliases or views"),
        (lambda m: m._buffers.update(positions=torch.empty(8, device="meta")), r"positions was computed|on meta"),
        (lambda m: setattr(m.inner[2], "bias", nn.Parameter(torch.zeros(8))), r"2 allocations, not in one arena"),
        (lambda m: m.inner[2].register_parameter("bias", None), r"inner\.2\.bias: here absent"),
        (lambda m: m._buffers.update(rows=torch.zeros(3, 8)), r"rows no longer lies on the memory of embed\.weight"),
        (lambda m: setattr(m, "scale", torch.empty((), device="meta")), r"scale was computed|on meta"),
    ],
)
def test_self_check_finds(damage: Callable[[nn.Module], object], message: str) -> None:
    skeleton = ModuleSkeleton(Awkward)
    module, _ = built(skeleton, None)
    assert skeleton.self_check(module) == []
    damage(module)
    problems = skeleton.self_check(module)
    assert problems
    assert any(re.search(message, problem) for problem in problems), json.dumps(problems)


def test_other_threads_build_ordinary_modules_meanwhile() -> None:
    def factory() -> nn.Module:
        with ThreadPoolExecutor(1) as pool:
            beside.append(pool.submit(nn.Linear, 2, 2).result())
        return nn.Linear(2, 2)

    beside: list[nn.Linear] = []
    module = ModuleSkeleton(factory).build(None, Rank(), "cpu")
    assert module.weight.is_meta
    assert not beside[0].weight.is_meta


def test_a_factory_that_needs_an_argument_gets_the_rank() -> None:
    def of_rank(rank: Rank) -> nn.Module:
        return nn.Linear(4, rank.pp + 1)

    def of_nothing(width: int = 3, *more: int, **named: int) -> nn.Module:
        return nn.Linear(4, width)

    for factory, width in ((of_rank, 2), (of_nothing, 3)):
        module = ModuleSkeleton(factory).build(None, Rank(pp=1, pp_size=2), "cpu")
        assert isinstance(module, nn.Linear)
        assert module.out_features == width
