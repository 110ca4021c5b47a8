"""What the tests of the API share: settings with a store of their own, and a small checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from coldstart import config
from coldstart.config import Settings

Write = Callable[..., Path]


@pytest.fixture
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return config.load({"directory": str(tmp_path_factory.mktemp("v")), "drain": 2.0}, environ={})


@pytest.fixture
def checkpoint(tmp_path: Path, write_checkpoint: Write) -> Path:
    return write_checkpoint(tmp_path / "model")
