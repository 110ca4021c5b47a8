"""Every example runs as its first lines say; those that serve are started and asked in ``tests/embed``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

DIRECTORY = Path(__file__).parent.parent / "examples"
SERVERS = {"04_fastapi.py", "05_plain_asyncio.py", "06_ray_serve.py"}
EXAMPLES = sorted(path for path in DIRECTORY.glob("*.py") if path.name not in SERVERS)
Write = Callable[..., Path]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(example: Path, tmp_path: Path, write_checkpoint: Write) -> None:
    checkpoint = write_checkpoint(tmp_path / "model")
    needs = "CHECKPOINT" in example.read_text().split('"""')[1]
    done = subprocess.run(
        [sys.executable, str(example), *([str(checkpoint)] if needs else [])],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLDSTART_DIRECTORY": str(tmp_path / "v")},
    )
    assert done.returncode == 0, done.stderr
    assert "peer" in done.stdout or "ready" in done.stdout


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3


def test_all_of_them_are_listed() -> None:
    listed = re.findall(r"^\| `([^`]+)` ", (DIRECTORY / "README.md").read_text(), re.MULTILINE)
    packages = sorted(f"{path.parent.name}/" for path in DIRECTORY.glob("*/pyproject.toml"))
    assert listed == sorted(path.name for path in DIRECTORY.glob("*.py")) + packages


def test_those_that_serve_are_started_by_a_test() -> None:
    tests = "".join(path.read_text() for path in (Path(__file__).parent / "embed").glob("*.py"))
    assert all(f'"{name}"' in tests for name in SERVERS)
