"""Weights that an engine keeps in device memory of its own: read, digested and lent where they lie."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import coldstart
from coldstart import config
from coldstart.arena import Arena
from coldstart.digest import ChunkDigester
from coldstart.inplace import InPlace
from coldstart.layout import Span
from coldstart.skeletons.adoption import elements, layout_of
from coldstart.skeletons.tensors import Tensors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


def test_scattered_device_memory_reads_and_digests_as_an_arena_does() -> None:
    torch.manual_seed(1)
    base = torch.randn(700, 33, device="cuda")
    tensors = {
        "view": base[3:90],
        "odd": torch.randint(0, 255, (300_001,), dtype=torch.uint8, device="cuda"),
        "empty": torch.empty(0, 4, device="cuda"),
        "half": torch.randn(1000, 1290, device="cuda").to(torch.bfloat16),
    }
    layout = layout_of(tensors, 256 * 1024)
    memory, arena = InPlace(layout, tensors, base.device), Arena(layout, "cuda")
    for placed in layout.tensors:
        if placed.storage >= 0:
            elements(arena.view(placed)).copy_(elements(tensors[placed.name]))
    torch.cuda.synchronize()
    for span in (Span(0, layout.nbytes), Span(5, 1), Span(100, 70_000), Span(layout.nbytes - 300, 300)):
        with memory.reading(span) as ours, arena.reading(span) as theirs:
            assert b"".join(ours) == b"".join(theirs), span
        assert ChunkDigester().digest(memory, span) == ChunkDigester().digest(arena, span)


async def test_an_engines_device_memory_is_lent_to_a_joiner_on_the_device(tmp_path: Path) -> None:
    torch.manual_seed(2)
    path = tmp_path / "model"
    path.mkdir()
    save_file({f"layer.{n}.weight": torch.randn(512, 777) for n in range(9)}, path / "model.safetensors")
    module = Tensors()
    for name, tensor in load_file(path / "model.safetensors", device="cuda:0").items():
        module.add(name, tensor)
    settings = config.load({"directory": str(tmp_path / "valkey")}, environ={})
    async with (
        coldstart.lend(module, path, skeleton="tensors", device="cuda:0", worker="engine", settings=settings) as engine,
        coldstart.join(path, skeleton="tensors", device="cuda:0", worker="b", settings=settings) as joiner,
    ):
        assert engine.report.path == "loaded"
        assert joiner.report.sources == ("engine",)
        for name in module.names():
            assert torch.equal(joiner.module[name], module[name])  # type: ignore[index]
