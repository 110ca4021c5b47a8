"""Pipelines of the user's own: each rank builds what it hosts, and constructors that load do not read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import coldstart
from coldstart import Group, Rank, config
from coldstart.checkpoint import read_checkpoint
from coldstart.config import Settings
from coldstart.errors import ConfigError, SkeletonError
from coldstart.skeletons.assembly import Order, inspect
from coldstart.skeletons.pipeline import Component, PipelineSkeleton

Load = Callable[[Path], Mapping[str, torch.Tensor]]


def by_torch(path: Path) -> Mapping[str, torch.Tensor]:
    loaded: Mapping[str, torch.Tensor] = torch.load(path.with_suffix(".pt"))
    return loaded


def by_handle(path: Path) -> Mapping[str, torch.Tensor]:
    with safetensors.safe_open(path, framework="pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # no mapping


def by_slices(path: Path) -> Mapping[str, torch.Tensor]:
    with safetensors.safe_open(path, framework="pt") as opened:
        return {name: opened.get_slice(name)[...] for name in opened.offset_keys()}


LOADERS: tuple[Load, ...] = (load_file, by_torch, by_handle, by_slices)


class Vae(nn.Module):
    """Ordinary: its weights are in the checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        out = self.inner(data)
        assert isinstance(out, torch.Tensor)
        return out


class Eager(Vae):
    """Loads itself in its constructor; ``seen`` tells whether what it got had values."""

    def __init__(self, path: Path, load: Load, seen: list[bool], *, assign: bool = False) -> None:
        super().__init__()
        state = load(path)
        seen.append(not any(tensor.is_meta for tensor in state.values()))
        self.load_state_dict({name: tensor.to("cpu") for name, tensor in state.items()}, assign=assign)


DATA = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return config.load({"directory": str(tmp_path_factory.mktemp("v")), "drain": 2.0}, environ={})


@pytest.fixture
def weights() -> dict[str, Vae]:
    torch.manual_seed(4)
    made = {name: Vae() for name in ("text", "vae")}
    for module in made.values():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.data.copy_(torch.rand(tensor.shape) * 3)
        module.eval()
    return made


@pytest.fixture
def checkpoint(tmp_path: Path, weights: Mapping[str, Vae]) -> Path:
    """The text encoder alone is in it; the other one is in a file of its own."""
    home = tmp_path / "model"
    home.mkdir()
    save_file({f"first.{name}": t for name, t in weights["text"].state_dict().items()}, home / "model.safetensors")
    save_file(weights["vae"].state_dict(), tmp_path / "vae.safetensors")
    torch.save(weights["vae"].state_dict(), tmp_path / "vae.pt")
    return home


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("load", LOADERS)
async def test_eager_constructors_read_nothing_while_peers_serve(
    load: Load, assign: bool, settings: Settings, checkpoint: Path, weights: Mapping[str, Vae]
) -> None:
    seen: dict[str, list[bool]] = {"a": [], "b": []}

    def pipeline(worker: str) -> PipelineSkeleton:
        def eager() -> Eager:
            return Eager(checkpoint.parent / "vae.safetensors", load, seen[worker], assign=assign)

        return PipelineSkeleton(
            {"text": Component(Vae, prefix="first."), "vae": Component(eager, eager=True)}, name="mine"
        )

    async with (
        coldstart.join(checkpoint, skeleton=pipeline("a"), worker="a", settings=settings) as a,
        coldstart.join(checkpoint, skeleton=pipeline("b"), worker="b", settings=settings) as b,
    ):
        assert (a.report.path, b.report.path) == ("storage", "peer")
        assert a.report.whole_read.startswith("vae.inner.0.weight: not mapped")
        assert seen == {"a": [False, True], "b": [False]}
        for replica in (a, b):
            assert list(replica.module) == ["text", "vae"]
            for name, ordinary in weights.items():
                assert torch.equal(replica.module[name](DATA), ordinary(DATA)), name
    assert load_file(checkpoint.parent / "vae.safetensors")["inner.0.weight"].device.type == "cpu", "loaders are back"
    assert not torch.load(checkpoint.parent / "vae.pt")["inner.0.weight"].is_meta


async def test_each_rank_builds_what_it_hosts(
    settings: Settings, tmp_path: Path, weights: Mapping[str, Vae]
) -> None:
    save_file(
        {f"{key}.{name}": t for key, module in weights.items() for name, t in module.state_dict().items()},
        tmp_path / "model.safetensors",
    )
    made: list[tuple[str, str]] = []

    def component(worker: str, key: str) -> Callable[[], Vae]:
        def make() -> Vae:
            made.append((worker, key))
            return Vae()

        return make

    def pipeline(worker: str) -> PipelineSkeleton:
        return PipelineSkeleton({key: component(worker, key) for key in weights}, hosts={"text": 0, "vae": (1,)})

    ranks = [Rank(pp=index, pp_size=2) for index in range(2)]
    async with AsyncExitStack() as stack:
        for generation in ("old", "new"):
            replicas = [
                await stack.enter_async_context(
                    coldstart.join(
                        tmp_path,
                        skeleton=pipeline(f"{generation}{rank.pp}"),
                        rank=rank,
                        group=Group(name=generation, size=2, index=rank.pp),
                        worker=f"{generation}{rank.pp}",
                        settings=settings,
                        wait=False,
                    )
                )
                for rank in ranks
            ]
            reports = [await replica.ready() for replica in replicas]
            assert [report.path for report in reports] == ["storage" if generation == "old" else "peer"] * 2
            for key, replica in zip(("text", "vae"), replicas, strict=True):
                assert list(replica.module) == [key]
                assert torch.equal(replica.module[key](DATA), weights[key](DATA))
    assert sorted(made) == [("new0", "text"), ("new1", "vae"), ("old0", "text"), ("old1", "vae")]


def test_a_checkpoint_that_has_everything_needs_no_constructor_to_read(
    tmp_path: Path, weights: Mapping[str, Vae]
) -> None:
    save_file(weights["vae"].state_dict(), tmp_path / "model.safetensors")
    seen: list[bool] = []
    vae = Component(lambda: Eager(tmp_path / "model.safetensors", load_file, seen), prefix="", eager=True)
    assert inspect(Order(tmp_path, PipelineSkeleton({"vae": vae}))).whole_read == ""
    assert seen == [False]


def test_components_are_found_by_prefix_and_named_by_component(tmp_path: Path, weights: Mapping[str, Vae]) -> None:
    save_file(weights["vae"].state_dict(), tmp_path / "model.safetensors")
    skeleton = PipelineSkeleton({"a": Component(Vae, prefix=""), "b": Component(Vae, prefix="")})
    module = skeleton.build(read_checkpoint(tmp_path), Rank(), "cpu")
    assert {name.partition(".")[0] for name in skeleton.carried(module)} == {"a", "b"}
    assert skeleton.find_names(module, skeleton.carried(module), read_checkpoint(tmp_path))["b.inner.0.bias"] == (
        "inner.0.bias"
    )


class Filled(nn.Module):
    """Loads a table that is not registered as persistent, so that nobody would carry it."""

    def __init__(self, path: Path, *, persistent: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))
        self.register_buffer("table", torch.zeros(4), persistent=persistent)
        self.table.copy_(load_file(path)["inner.0.bias"])


@pytest.mark.parametrize("persistent", [False, True])
def test_what_was_to_be_filled_is_never_taken_for_computed(persistent: bool, checkpoint: Path) -> None:
    file = checkpoint.parent / "vae.safetensors"
    skeleton = PipelineSkeleton({"x": Component(lambda: Filled(file, persistent=persistent), eager=True)})
    if persistent:
        module = skeleton.build(read_checkpoint(checkpoint), Rank(), "cpu")
        assert "x.table" in skeleton.carried(module)
    else:
        with pytest.raises(SkeletonError, match=r"x\.table is filled from a file by its constructor, but is not"):
            skeleton.build(read_checkpoint(checkpoint), Rank(), "cpu")


@pytest.mark.parametrize(
    ("hosts", "rank", "message"),
    [
        ({"text": 0, "sound": 1}, Rank(pp_size=2), "hosts names 'sound', which is no component"),
        ({"text": -1}, Rank(pp_size=2), "hosts puts 'text' on a rank below 0"),
        ({"text": "0"}, Rank(), "hosts puts 'text' on '0'; give a rank, or several"),
        ({"text": None}, Rank(), "hosts puts 'text' on None; give a rank, or several"),
        ({"text": 0.0}, Rank(), "hosts puts 'text' on 0.0; give a rank, or several"),
        ({"text": 2}, Rank(pp_size=2), "component 'text' is on a rank that a pipeline of 2 does not have"),
        ({"text": 0}, Rank(pp=1, pp_size=2), "rank pp=1 hosts no component"),
    ],
)
def test_a_map_that_cannot_be_is_refused(hosts: Mapping[str, int], rank: Rank, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PipelineSkeleton({"text": Vae}, hosts=hosts).build(None, rank, "cpu")


def test_the_map_is_part_of_the_identity() -> None:
    one, two = (PipelineSkeleton({"text": Vae, "vae": Vae}, hosts={"text": at}) for at in (0, 1))
    assert one.identity != two.identity


def test_a_component_that_is_no_module_is_named() -> None:
    with pytest.raises(SkeletonError, match="component text was made as a Tensor"):
        PipelineSkeleton({"text": lambda: torch.ones(1)}).build(None, Rank(), "cpu")  # type: ignore[dict-item]
