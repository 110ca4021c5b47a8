"""What every test shares: async tests run on asyncio, through anyio's pytest plugin; small checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from safetensors.torch import save_file

settings.register_profile("coldstart", deadline=None, derandomize=True, database=None)
settings.load_profile("coldstart")

pytest.register_assert_rewrite(
    "coldstart.testing.bus_contract",
    "coldstart.testing.digester_contract",
    "coldstart.testing.keyed_contract",
    "coldstart.testing.late_writes",
    "coldstart.testing.transport_contract",
)

WriteCheckpoint = Callable[..., Path]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of the test's own: what one has measured must not change the course of another."""
    home = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home / "coldstart" / "links"


@pytest.fixture(autouse=True)
def no_file_of_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What whoever runs the tests has in a file must not change their course, nor that of the processes they start."""
    monkeypatch.setenv("COLDSTART_CONFIG", "none")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))


@pytest.fixture(scope="session")
def write_checkpoint() -> WriteCheckpoint:
    """``write_checkpoint(directory, seed=0, mib=6, names=...)``: a directory with ``model.safetensors``."""

    def write(directory: Path, seed: int = 0, mib: int = 6, **extra: torch.Tensor) -> Path:
        generator = torch.Generator().manual_seed(seed)
        directory.mkdir(parents=True, exist_ok=True)
        tensors = {
            "embed.weight": torch.randn(mib * 1024, 256, generator=generator),
            "layer.0.bias": torch.randn(7, generator=generator),
            "layer.0.weight": torch.randn(33, 65, generator=generator).to(torch.bfloat16),
            "scale": torch.tensor(3.5),
            **extra,
        }
        save_file(tensors, directory / "model.safetensors")
        return directory

    return write
