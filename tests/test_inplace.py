"""Weights that an engine loaded by itself: lent from where they lie, if they are the fleet's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import coldstart
from coldstart import config
from coldstart.arena import Arena
from coldstart.config import Settings
from coldstart.digest import ChunkDigester
from coldstart.errors import ColdStartFailed, SkeletonError, TruthConflict
from coldstart.inplace import InPlace
from coldstart.layout import Layout, Span, Tensor
from coldstart.skeletons.adoption import elements, in_place, layout_of
from coldstart.skeletons.tensors import Tensors
from coldstart.transports.sampled import MAX_SAMPLES, SAMPLE_BYTES, samples

Write = Callable[..., Path]


@pytest.fixture
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return config.load({"directory": str(tmp_path_factory.mktemp("v")), "drain": 2.0}, environ={})


@pytest.fixture
def checkpoint(tmp_path: Path, write_checkpoint: Write) -> Path:
    return write_checkpoint(tmp_path / "model")


def loaded(checkpoint: Path) -> Tensors:
    """The tensors as somebody else loads them: each in memory of its own."""
    module = Tensors()
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        module.add(name, tensor)
    return module


def scattered() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    base = torch.randn(400, 33)
    return {
        "odd": torch.randn(7, 1, 3, dtype=torch.float64),
        "view": base[3:90],
        "alias": base[3:90],
        "bytes": torch.randint(0, 255, (70_001,), dtype=torch.uint8),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(3.5),
        "half": torch.randn(1000, 129).to(torch.bfloat16),
    }


def test_scattered_memory_reads_and_digests_as_an_arena_does() -> None:
    tensors = scattered()
    layout = layout_of(tensors, 256 * 1024)
    memory, arena = InPlace(layout, tensors, torch.device("cpu")), Arena(layout, "cpu")
    for placed in layout.tensors:
        if placed.storage >= 0:
            elements(arena.view(placed)).copy_(elements(tensors[placed.name]))
    for span in (Span(0, layout.nbytes), Span(5, 1), Span(100, 70_000), Span(layout.nbytes - 300, 300), Span(0, 0)):
        with memory.reading(span) as ours, arena.reading(span) as theirs:
            assert b"".join(ours) == b"".join(theirs), span
        if span.length:
            assert ChunkDigester().digest(memory, span) == ChunkDigester().digest(arena, span)
    assert sum(region.length for region in memory.regions(Span(0, layout.nbytes))) == layout.payload


def test_it_is_for_reading_only_and_says_where_everything_lies() -> None:
    tensors = scattered()
    memory = InPlace(layout_of(tensors), tensors, torch.device("cpu"))
    with pytest.raises(TypeError, match="only lent"):
        memory.writing(Span(0, 1))
    assert all(tensor.data_ptr() == memory.address(placed) for tensor, placed in memory.held() if tensor.numel())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda module: delattr(module, "extra") if hasattr(module, "extra") else delattr(module, "weight"), "has no"),
        (lambda module: setattr(module, "weight", nn.Parameter(torch.zeros(2, 2).half())), "not what its builder"),
    ],
    ids=["missing", "another dtype"],
)
def test_a_module_that_does_not_fit_is_refused_by_name(change: Callable[[nn.Module], None], message: str) -> None:
    module = nn.Linear(2, 2)
    wanted = {name: tensor.to("meta") for name, tensor in nn.Linear(2, 2).named_parameters()}
    change(module)
    with pytest.raises(SkeletonError, match=message):
        in_place(module, wanted, "cpu")


async def test_an_engines_weights_are_lent_from_where_they_lie(settings: Settings, checkpoint: Path) -> None:
    module = loaded(checkpoint)
    places = {name: tensor.data_ptr() for name, tensor in module.named_parameters()}
    async with coldstart.lend(module, checkpoint, skeleton="tensors", worker="engine", settings=settings) as engine:
        assert (engine.report.path, engine.report.verified) == ("loaded", True)
        assert engine.module is module
        assert places == {name: tensor.data_ptr() for name, tensor in module.named_parameters()}
        async with coldstart.join(checkpoint, skeleton="tensors", worker="b", settings=settings) as joiner:
            assert joiner.report.sources == ("engine",)
            for name, tensor in load_file(checkpoint / "model.safetensors").items():
                assert torch.equal(joiner.module[name], tensor)  # type: ignore[index]


async def test_what_the_fleet_has_verified_is_what_an_engine_must_hold(settings: Settings, checkpoint: Path) -> None:
    good, bad = loaded(checkpoint), loaded(checkpoint)
    name = good.names()[0]
    with torch.no_grad():
        bad[name].view(torch.uint8).flatten()[0] ^= 1
    async with coldstart.join(checkpoint, skeleton="tensors", worker="a", settings=settings):
        async with coldstart.lend(good, checkpoint, skeleton="tensors", worker="good", settings=settings) as replica:
            assert replica.report.against == "published truth"
        with pytest.raises(TruthConflict, match="differs from the published truth"):
            async with coldstart.lend(bad, checkpoint, skeleton="tensors", worker="bad", settings=settings):
                pass
        async with coldstart.join(checkpoint, skeleton="tensors", worker="c", settings=settings) as later:
            assert later.report.path == "peer", "nothing was poisoned"




def never_loaded(module: Tensors) -> None:
    for name in module.names():
        elements(module[name]).fill_(7)


def adapter_merged(module: Tensors) -> None:
    # Through ``.data``, as adapter libraries do.
    next(module[name] for name in module.names() if module[name].dtype == torch.float32).data.add_(0.5)


@pytest.mark.parametrize("change", [never_loaded, adapter_merged])
@pytest.mark.parametrize("redis", ["", "none"])
async def test_what_the_checkpoint_does_not_hold_is_not_made_the_truth(
    settings: Settings, checkpoint: Path, change: Callable[[Tensors], None], redis: str
) -> None:
    settings = msgspec.structs.replace(settings, redis=redis)
    bad = loaded(checkpoint)
    with torch.no_grad():
        change(bad)
    with pytest.raises(ColdStartFailed, match="not what the checkpoint holds"):
        async with coldstart.lend(bad, checkpoint, skeleton="tensors", worker="bad", settings=settings):
            pass
    async with coldstart.lend(loaded(checkpoint), checkpoint, skeleton="tensors", settings=settings) as good:
        assert good.report.against == "own memory, as it was lent", "nothing was published before it"


def test_samples_lie_in_the_middle_of_storages_and_are_bounded_however_many_there_are() -> None:
    sizes = [*range(1, 3 * MAX_SAMPLES), 10 * SAMPLE_BYTES]
    for count in (0, 1, MAX_SAMPLES, MAX_SAMPLES + 1, len(sizes)):
        chosen = sizes[len(sizes) - count :]
        tensors = tuple(Tensor(str(at), "uint8", (size,), (1,), at, 0) for at, size in enumerate(chosen))
        layout = Layout(tensors, tuple(chosen), 1 << 18)
        found = samples(layout)
        assert min(count, MAX_SAMPLES // 2) <= len(found) <= MAX_SAMPLES
        for span in found:
            (piece,) = layout.pieces(span)
            assert piece.length == span.length == min(layout.storages[piece.storage], SAMPLE_BYTES)
