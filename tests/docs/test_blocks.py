"""Code on the pages does what it is shown for: it runs, or says why it cannot, and it type-checks.

A block runs in an ``async def``, below the names of ``stand_ins.py``, on small checkpoints and a store of its own.
Pages of plugins are compiled only: their code needs models that are not here.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import iscoroutinefunction
from pathlib import Path
from textwrap import dedent, indent
from typing import cast

import pytest
import torch
import yaml
from safetensors.torch import save_file

import coldstart
from coldstart.bus.embedded import embedded
from tests.docs import stand_ins
from tests.docs.pages import ROOT, Block, blocks

COMPILED = [block for block in blocks("python") if not block.source]
OWN = [block for block in COMPILED if not block.fragment and not block.where.startswith("plugins/")]
SHOWN = [block for language in ("python", "toml") for block in blocks(language) if block.source]
RUN = [block for block in OWN if not block.not_run]
CHECK_AS = (
    "# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, disable-error-code=unreachable\n"
    "from tests.docs.stand_ins import *\n"
)


def program(block: Block) -> str:
    """The block as the body of a function that may await."""
    return f"async def main():\n{indent(dedent(block.text), '    ')}\n"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Stands for ``/models``: a checkpoint for each name that the pages use."""
    for name, tensors in {
        "minilm": {"embed.weight": torch.ones(300, 7), "bias": torch.ones(5)},
        "mlp": {"0.weight": torch.ones(1024, 256), "0.bias": torch.ones(1024), "2.weight": torch.ones(256, 1024)}
        | {"2.bias": torch.ones(256)},
    }.items():
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors")
    return tmp_path


@asynccontextmanager
async def surroundings(models: Path, store: str) -> AsyncIterator[dict[str, object]]:
    """The names that a block finds, with a replica that serves."""
    async with coldstart.join(models / "minilm", skeleton="tensors", redis=store, worker="stand-in") as replica:
        yield {**vars(stand_ins), "replica": replica}


@pytest.mark.parametrize("block", RUN, ids=lambda block: block.id)
async def test_it_runs(block: Block, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLDSTART_DIRECTORY", str(tmp_path / "v"))
    async with embedded(tmp_path / "v") as store, surroundings(models, store) as names:
        text = program(block).replace('"/models/', f'"{models}/').replace("redis://store:6379", store)
        exec(compile(text, block.where, "exec"), names)
        assert iscoroutinefunction(names["main"])
        await cast(Callable[[], Awaitable[None]], names["main"])()


@pytest.mark.parametrize("block", SHOWN, ids=lambda block: block.id)
def test_what_is_shown_from_a_file_stands_there(block: Block) -> None:
    assert block.text.strip("\n") in (ROOT / block.source).read_text()


@pytest.mark.timeout(200)  # without what "make types" leaves behind, mypy reads all of torch first
def test_all_of_it_type_checks(tmp_path: Path) -> None:
    """By the rules of the project, but that a page may leave annotations out."""
    for number, block in enumerate(OWN):
        where = re.sub(r"\W", "_", block.where)
        (tmp_path / f"block_{number}_{where}.py").write_text(f"{CHECK_AS}{program(block)}")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), *map(str, tmp_path.glob("*.py"))],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("block", COMPILED, ids=lambda block: block.id)
def test_it_compiles(block: Block) -> None:
    ast.parse(program(block))


@pytest.mark.parametrize("block", COMPILED, ids=lambda block: block.id)
def test_a_block_that_is_not_run_says_why(block: Block) -> None:
    reason = block.not_run or block.fragment
    assert not block.said or len(reason) > 10, f"before {block.where} stands {block.said!r}"


@pytest.mark.parametrize("block", blocks("json", "toml", "yaml"), ids=lambda block: block.id)
def test_data_can_be_read(block: Block) -> None:
    if block.language == "toml":
        tomllib.loads(block.text)
    elif block.language == "yaml":
        assert list(yaml.safe_load_all(block.text))
    else:
        json.loads(block.text if block.text.lstrip().startswith(("{", "[")) else f"{{{block.text}}}")


def test_there_is_something_to_run() -> None:
    assert len(RUN) > 5
    assert len(SHOWN) > 4
