"""What the tests share: async tests on asyncio, a small checkpoint, and a module filled as vLLM's loaders would."""

from __future__ import annotations

from collections.abc import Callable, Set
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Tiny(nn.Module):
    """Two projections that are stored apart and held as one, a norm, and a scale that is never stored."""

    def __init__(self) -> None:
        super().__init__()
        self.merged = nn.Parameter(torch.empty(512, 256), requires_grad=False)
        self.norm = nn.Parameter(torch.ones(256), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(-1.0), requires_grad=False)
        self.register_buffer("angles", torch.arange(8.0), persistent=False)


def fill_from(path: Path) -> Callable[[nn.Module], Set[str] | None]:
    """Loads what :func:`checkpoint` has written, and says what it has loaded."""

    def fill(module: nn.Module) -> Set[str] | None:
        stored = load_file(path / "model.safetensors")
        module.get_parameter("merged").data[:256].copy_(stored["up"])
        module.get_parameter("merged").data[256:].copy_(stored["gate"])
        module.get_parameter("norm").data.copy_(stored["norm"])
        return {"merged", "norm"}

    return fill


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A directory with ``model.safetensors``."""
    path = tmp_path / "model"
    path.mkdir()
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(256, 256, generator=generator) for name in ("up", "gate")}
    save_file({**tensors, "norm": torch.randn(256, generator=generator)}, path / "model.safetensors")
    return path


@pytest.fixture
def tiny() -> Tiny:
    return Tiny()


@pytest.fixture
def fill(checkpoint: Path) -> Callable[[nn.Module], Set[str] | None]:
    return fill_from(checkpoint)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store and a cache of the test's own."""
    monkeypatch.setenv("COLDSTART_DIRECTORY", str(tmp_path / "s"))
    monkeypatch.setenv("COLDSTART_CACHE", "none")
