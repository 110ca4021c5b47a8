"""Every example runs as its first lines say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
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
    directory = Path(__file__).parent.parent / "examples"
    listed = re.findall(r"^\| `([^`]+)` ", (directory / "README.md").read_text(), re.MULTILINE)
    packages = sorted(f"{path.parent.name}/" for path in directory.glob("*/pyproject.toml"))
    assert listed == [path.name for path in EXAMPLES] + packages
