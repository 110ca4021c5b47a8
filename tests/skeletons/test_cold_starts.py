"""Modules that are hard to move, through the public API: equal answers bit for bit, or refused in words."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import parametrizations, prune

import coldstart
from coldstart import config
from coldstart.config import Settings
from coldstart.errors import ColdstartError, SkeletonError
from coldstart.ports import Checkpoint
from coldstart.skeletons.adoption import elements
from coldstart.skeletons.classify import Inventory
from coldstart.skeletons.extra import ExtraState
from coldstart.skeletons.module import ModuleSkeleton

Factory = Callable[[], nn.Module]
DATA = torch.linspace(-2, 2, 12).reshape(3, 4)
_seeds = itertools.count(1)


class Own(ModuleSkeleton[nn.Module]):
    """Its storage is an ordinary module, so that no value needs to fit into a file."""

    def __init__(self, factory: Factory, ordinary: nn.Module, **options: object) -> None:
        super().__init__(lambda: seeded(factory), name="own", **options)  # type: ignore[arg-type]
        self._ordinary = ordinary

    def absent(self, module: nn.Module, inventory: Inventory, checkpoint: Checkpoint) -> frozenset[str]:
        return frozenset()

    def stored_names(self, module: nn.Module, checkpoint: Checkpoint) -> None:
        return None

    def load(self, module: nn.Module, checkpoint: Checkpoint) -> None:
        values = {
            **dict(self._ordinary.named_parameters(remove_duplicate=False)),
            **dict(self._ordinary.named_buffers(remove_duplicate=False)),
        }
        for name, tensor in self.carried(module).items():
            if name in values:
                elements(tensor).copy_(elements(values[name]))


def seeded(factory: Factory, seed: int = 0) -> nn.Module:
    """What ``factory`` makes with other random values each time, unless a seed is given."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the older forms of normalisation say that they are
        torch.manual_seed(seed or next(_seeds) + 1000)
        return factory()


@pytest.fixture
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return config.load({"directory": str(tmp_path_factory.mktemp("v")), "drain": 2.0}, environ={})


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A checkpoint that has nothing to do with the module."""
    save_file({"unused": torch.zeros(1)}, tmp_path / "model.safetensors")
    return tmp_path


# ----------------------------------------------------------------------------------- what is supported


class Held(nn.Module):
    """A weight, and whatever a test hangs beside it; answers with everything ``beside`` gives."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return data @ self.weight + self.beside()

    def beside(self) -> torch.Tensor:
        return torch.zeros(())


class Views(Held):
    def __init__(self) -> None:
        super().__init__()
        base = torch.randn(10)
        self.register_buffer("front", base[:6])
        self.register_buffer("back", base[4:])
        self.register_buffer("expanded", torch.randn(1, 1).expand(3, 4))
        self.row = self.weight.detach()[1]

    def beside(self) -> torch.Tensor:
        return self.expanded + self.front.sum() - self.back.prod() + self.row


class Small(Held):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(()))
        self.nothing = nn.Parameter(torch.empty(0, 4))

    def beside(self) -> torch.Tensor:
        return self.scale + self.nothing.sum()


class Convolution(Held):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)

    def beside(self) -> torch.Tensor:
        out = self.convolution(torch.ones(1, 2, 3, 3))
        assert isinstance(out, torch.Tensor)
        return out.sum()


class Kinds(Held):
    """Number formats that few operations know; answers with their bytes."""

    NAMES = (
        "complex64", "complex32", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2",
        *(f"uint{bits}" for bits in range(1, 8)), *(f"int{bits}" for bits in range(1, 8)), "uint16", "bool",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        for name in self.NAMES:
            raw = torch.randint(0, 2, (16,), dtype=torch.uint8)
            self.register_buffer(f"as_{name}", raw.view(getattr(torch, name)))

    def beside(self) -> torch.Tensor:
        sums = [elements(getattr(self, f"as_{name}")).flatten().float() for name in self.NAMES]
        return torch.stack([(each * torch.arange(16)).sum() for each in sums]).sum()


class Inferred(Held):
    """Made in inference mode, as servers do."""

    def __init__(self) -> None:
        with torch.inference_mode():
            super().__init__()
            self.register_buffer("shift", torch.randn(4))
            self.register_buffer("steps", torch.arange(4.0), persistent=False)

    def beside(self) -> torch.Tensor:
        return self.shift + self.steps


class Conjugated(Held):
    """A lazily conjugated view, which is computed here."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("phase", torch.polar(torch.ones(4), torch.arange(4.0)).conj(), persistent=False)

    def beside(self) -> torch.Tensor:
        return self.phase.imag


class Filling(Held):
    """A buffer that is None until the first request, and one that grows with each."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", None)
        self.register_buffer("seen", torch.zeros(0), persistent=False)

    def beside(self) -> torch.Tensor:
        if self.cache is None:
            self.cache = torch.ones(4)
        self.seen = torch.cat([self.seen, torch.ones(1)])
        return self.cache


@dataclasses.dataclass
class Table:
    rows: list[torch.Tensor]


class Slotted:
    __slots__ = ("missing", "value")

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


class Around(Held):
    """Constants in objects that are no containers, and a parameter that is known by two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Table([torch.arange(4.0)])
        self.slotted = {"it": Slotted(torch.tensor(3.0))}
        ramp = torch.linspace(0, 1, 4)
        self.curve = lambda data: data * ramp
        self.bound = functools.partial(torch.add, torch.ones(4))
        self.known = [self.weight]
        self.activations = [nn.GELU()]
        self.names = types.MappingProxyType({"a": 1})
        self.ring = [self]

    def beside(self) -> torch.Tensor:
        return self.curve(self.table.rows[0]) + self.slotted["it"].value + self.bound(self.known[0][0])


def legacy(normalise: Callable[[nn.Module], nn.Module]) -> Factory:
    return lambda: nn.Sequential(normalise(nn.Linear(4, 4)), nn.ReLU(), normalise(nn.Linear(4, 2)))


def pruned() -> nn.Module:
    layer = nn.Linear(4, 4)
    prune.random_unstructured(layer, "weight", amount=0.5)
    prune.random_unstructured(layer, "bias", amount=0.5)
    return layer


def compiled() -> nn.Module:
    module = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), backend="eager")
    assert isinstance(module, nn.Module)
    return module


def regionally_compiled() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    module[1] = torch.compile(module[1], backend="eager")  # type: ignore[assignment]
    return module


SUPPORTED: dict[str, Factory] = {
    "views and expanded": Views,
    "scalar and empty": Small,
    "channels last": Convolution,
    "complex, float8, sub-byte": Kinds,
    "inference mode": Inferred,
    "conjugated": Conjugated,
    "none and growing buffers": Filling,
    "plain objects": Around,
    "weight norm": legacy(lambda layer: nn.utils.weight_norm(layer)),
    "weight norm, parametrised": legacy(parametrizations.weight_norm),
    "spectral norm": legacy(lambda layer: nn.utils.spectral_norm(layer)),
    "spectral norm, parametrised": legacy(parametrizations.spectral_norm),
    "pruned": pruned,
    "compiled": compiled,
    "regionally compiled": regionally_compiled,
}


@pytest.mark.parametrize("name", SUPPORTED)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
async def test_equal_answers_from_a_peer(name: str, empty: Path, settings: Settings) -> None:
    """The first worker's values come from its own loader, the second one's from the first."""
    factory = SUPPORTED[name]
    ordinary = seeded(factory, seed=1).eval()
    with torch.no_grad():
        expected = ordinary(DATA)
    builders = [Own(factory, ordinary), Own(factory, ordinary)]
    async with (
        coldstart.join(empty, skeleton=builders[0], worker="a", settings=settings) as a,
        coldstart.join(empty, skeleton=builders[1], worker="b", settings=settings) as b,
    ):
        assert (a.report.path, b.report.path) == ("storage", "peer")
        for builder, replica in zip(builders, (a, b), strict=True):
            found = builder.classify(replica.module)
            assert not found.refusals
            assert len({each.name for each in found.tensors}) == len(found.tensors)
            with torch.no_grad():
                assert torch.equal(replica.module(DATA), expected)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
async def test_a_checkpoint_of_a_wrapped_module(prefix: str, tmp_path: Path, settings: Settings) -> None:
    """DDP's prefix, a compiled module's, and both; with a compiled part in the middle of the names."""
    ordinary = seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), seed=1)
    stored = {f"{prefix}{name}".replace("1.", "1._orig_mod."): t for name, t in ordinary.state_dict().items()}
    save_file(stored, tmp_path / "model.safetensors")

    def plain() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))

    def wrapped() -> nn.Module:
        return nn.Sequential(torch.compile(nn.Linear(4, 4), backend="eager"), nn.Linear(4, 2))  # type: ignore[arg-type]

    for factory in (plain, wrapped):
        async with (
            coldstart.join(tmp_path, skeleton=factory, worker="a", settings=settings) as a,
            coldstart.join(tmp_path, skeleton=factory, worker="b", settings=settings) as b,
        ):
            assert (a.report.path, a.report.whole_read, b.report.path) == ("storage", "", "peer")
            assert torch.equal(a.module(DATA), ordinary(DATA))
            assert torch.equal(b.module(DATA), ordinary(DATA))


class Scaled(nn.Linear):
    """Keeps a number outside its tensors, as quantised layers do."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.factor = 1.0

    def get_extra_state(self) -> dict[str, float]:
        return {"factor": self.factor}

    def set_extra_state(self, state: dict[str, float]) -> None:
        self.factor = state["factor"]

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return super().forward(data) * self.factor


class ScaledElsewhere(Own):
    """Its storage knows the factor."""

    def load(self, module: nn.Module, checkpoint: Checkpoint) -> None:
        super().load(module, checkpoint)
        state = CODEC.encode({"factor": 2.5})
        self.carried(module)["0._extra_state"].copy_(torch.tensor(list(state), dtype=torch.uint8))


CODEC = ExtraState(
    encode=lambda state: json.dumps(state).ljust(40).encode(), decode=lambda data: json.loads(data.decode())
)


async def test_extra_state_travels_through_a_codec(empty: Path, settings: Settings) -> None:
    ordinary = seeded(lambda: nn.Sequential(Scaled()), seed=1)
    ordinary[0].factor = 2.5  # type: ignore[union-attr, index]

    def builder() -> ScaledElsewhere:
        return ScaledElsewhere(lambda: nn.Sequential(Scaled()), ordinary, extra_state=CODEC)

    async with (
        coldstart.join(empty, skeleton=builder(), worker="a", settings=settings) as a,
        coldstart.join(empty, skeleton=builder(), worker="b", settings=settings) as b,
    ):
        assert b.report.path == "peer"
        assert torch.equal(a.module(DATA), ordinary(DATA))
        assert torch.equal(b.module(DATA), ordinary(DATA))


async def test_extra_state_that_does_not_decode_is_not_served(empty: Path, settings: Settings) -> None:
    broken = ExtraState(CODEC.encode, decode=lambda data: json.loads(b"{" + data))
    ordinary = seeded(lambda: nn.Sequential(Scaled()), seed=1)
    skeleton = ScaledElsewhere(lambda: nn.Sequential(Scaled()), ordinary, extra_state=broken)
    with pytest.raises(SkeletonError, match="JSONDecodeError"):
        async with coldstart.join(empty, skeleton=skeleton, settings=settings):
            raise AssertionError("not reached")


def test_runtime_state_is_what_a_builder_declares() -> None:
    undeclared, declared = ModuleSkeleton(Filling), ModuleSkeleton(Filling, runtime=["cache", "se*"])
    for skeleton, expected in ((undeclared, "unsupported"), (declared, "runtime")):
        module = skeleton.build(None, coldstart.Rank(), "cpu")
        assert "cache" not in {each.name for each in skeleton.classify(module).tensors}
        module.beside()
        found = {each.name: each.treatment for each in skeleton.classify(module).tensors}
        assert found["cache"] == expected
        assert found["seen"] == ("recomputed" if expected == "unsupported" else "runtime")


# -------------------------------------------------------------------------------------- what is refused


class Wrapped(torch.Tensor):
    """A tensor made of two others, as torchao's quantised weights are."""

    @staticmethod
    def __new__(cls, low: torch.Tensor, scale: torch.Tensor) -> Wrapped:
        made = torch.Tensor._make_wrapper_subclass(cls, low.shape, dtype=scale.dtype)  # type: ignore[attr-defined]
        assert isinstance(made, Wrapped)
        return made

    def __init__(self, low: torch.Tensor, scale: torch.Tensor) -> None:
        self.low, self.scale = low, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["low", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], *rest: object) -> Wrapped:
        return Wrapped(inner["low"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: object, types: object, args: tuple[object, ...], kwargs: object = None) -> object:
        if func is torch.ops.aten.detach.default:
            (held,) = args
            assert isinstance(held, Wrapped)
            return Wrapped(held.low, held.scale)
        raise NotImplementedError(func)


def holding(**held: object) -> Factory:
    """A module with these attributes; tensors become buffers, factories are called first."""

    def make() -> nn.Module:
        module = Held()
        for name, value in held.items():
            made = value() if callable(value) else value
            if isinstance(made, torch.Tensor) and not isinstance(made, nn.Parameter):
                module.register_buffer(name, made)
            else:
                setattr(module, name, made)
        return module

    return make


def quantised() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)


def meddling() -> nn.Module:
    """A hook that keeps a weight to itself."""
    kept = nn.Parameter(torch.randn(4))
    module = Held()
    module.register_forward_hook(lambda owner, args, result: result * kept)
    return module


class FullyShardedDataParallel(nn.Module):
    """What FSDP calls its wrapper."""

    def __init__(self) -> None:
        super().__init__()
        self._fsdp_wrapped_module = nn.Linear(4, 4)


REFUSED: dict[str, tuple[Factory, str]] = {
    "sparse": (holding(table=lambda: torch.eye(4).to_sparse()), "table is not strided but sparse_coo"),
    "quantised": (holding(table=quantised), "table is quantised in torch's old way"),
    "conjugated": (holding(phase=lambda: torch.ones(2, dtype=torch.complex64).conj()), "phase is a lazily conjugated"),
    "wrapper subclass": (
        holding(packed=lambda: nn.Parameter(Wrapped(torch.ones(4), torch.ones(1)))),
        "packed is a Wrapped, a tensor made of other tensors",
    ),
    "lazy": (lambda: nn.LazyLinear(4), "weight is an uninitialised parameter of a lazy module"),
    "parameters in a list": (holding(extra=lambda: [nn.Parameter(torch.ones(2))]), r"extra\[0\] is a parameter in a"),
    "modules in a list": (holding(layers=lambda: [nn.Linear(2, 2)]), r"layers\[0\] is a module with tensors in a"),
    "modules in an object": (
        holding(box=lambda: types.SimpleNamespace(inner={"x": nn.Linear(2, 2)})),
        r"box\.inner\['x'\] is a module with tensors",
    ),
    "parameters in slots": (holding(box=lambda: Slotted(nn.Parameter(torch.ones(2)))), r"box\.value is a parameter in"),
    "parameters in a closure": (meddling, r"_forward_hooks\[\d+\]\.<kept> is a parameter in a plain attribute"),
    "extra state": (lambda: nn.Sequential(Scaled()), r"0\._extra_state is refused: 0 \(Scaled\) keeps extra state"),
    "FSDP": (lambda: nn.Sequential(FullyShardedDataParallel()), "0 is sharded by FSDP; build a rank's part before"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_cannot_be_moved_is_refused_by_name(name: str, empty: Path) -> None:
    factory, words = REFUSED[name]
    alone = config.load({"redis": "none"}, environ={})
    with pytest.raises(ColdstartError, match=words) as caught:
        async with coldstart.join(empty, skeleton=factory, settings=alone):
            raise AssertionError("not reached")
    assert "\n" not in str(caught.value)


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_a_sharded_tensor_is_refused_with_what_to_do() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    def sharded() -> nn.Module:
        module = nn.Linear(4, 4)
        module.weight = nn.Parameter(distribute_tensor(torch.ones(4, 4), init_device_mesh("cpu", (1,))))
        return module

    with pytest.raises(SkeletonError, match="weight is a DTensor, sharded over a device mesh; build a rank's part"):
        ModuleSkeleton(sharded).build(None, coldstart.Rank(), "cpu")
