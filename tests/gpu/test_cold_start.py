"""Whole cold starts into device memory: over TCP through pinned staging, from and to every kind of memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import coldstart
from coldstart import config

Write = Callable[..., Path]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


@pytest.mark.parametrize("source", ["cpu", "cuda"])
@pytest.mark.parametrize("joiner", ["cpu", "cuda"])
async def test_weights_move_between_all_kinds_of_memory(
    source: str, joiner: str, tmp_path: Path, write_checkpoint: Write
) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", mib=96)
    settings = config.load({"directory": str(tmp_path / "v")}, environ={})
    async with (
        coldstart.join(checkpoint, skeleton="tensors", worker="a", device=source, settings=settings) as first,
        coldstart.join(checkpoint, skeleton="tensors", worker="b", device=joiner, settings=settings) as second,
    ):
        assert first.report.path == "storage"
        assert (second.report.path, second.report.verified) == ("peer", True)
        assert first.report.root == second.report.root
        for name, expected in load_file(checkpoint / "model.safetensors").items():
            tensor = second.module.get_parameter(name)
            assert tensor.device.type == joiner
            assert torch.equal(tensor.cpu(), expected), name


async def test_a_cold_started_device_gives_its_memory_back(tmp_path: Path, write_checkpoint: Write) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", mib=96)
    settings = config.load({"directory": str(tmp_path / "v")}, environ={})
    held: list[int] = []
    async with coldstart.join(checkpoint, skeleton="tensors", worker="a", device="cuda", settings=settings):
        for _ in range(5):
            await start_and_leave(checkpoint, settings)
            torch.cuda.empty_cache()
            held.append(torch.cuda.memory_allocated())
    assert held[-1] <= held[0]


async def start_and_leave(checkpoint: Path, settings: config.Settings) -> None:
    async with coldstart.join(checkpoint, skeleton="tensors", worker="b", device="cuda", settings=settings) as replica:
        assert replica.report.path == "peer"
