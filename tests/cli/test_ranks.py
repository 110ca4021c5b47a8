"""Which group the options of ``coldstart worker`` mean."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from coldstart.cli.ranks import group_of
from coldstart.errors import ConfigError
from coldstart.group import Group


def test_options_name_a_group_or_none() -> None:
    assert group_of(None, 1, 0, torchrun=False) is None
    assert group_of("run", 4, 3, torchrun=False) == Group("run", 4, 3)


@pytest.mark.parametrize(
    ("name", "size", "index", "torchrun", "problem"),
    [
        ("run", 4, 4, False, "rank 4 of 4"),
        ("run", 0, 0, False, "rank 0 of 0"),
        ("a b", 2, 0, False, "malformed"),
        (None, 2, 1, False, "without a group"),
        ("run", 2, 1, True, "two groups"),
        (None, 1, 0, True, "did not start this process"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    name: str | None, size: int, index: int, torchrun: bool, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with pytest.raises(ConfigError, match=problem):
        group_of(name, size, index, torchrun=torchrun)


@pytest.mark.processes
def test_ranks_that_torchrun_starts_are_one_group(tmp_path: Path, store: str) -> None:
    save_file({"weight": torch.arange(1000.0)}, tmp_path / "model.safetensors")
    words = ["worker", "--checkpoint", str(tmp_path), "--skeleton", "tensors", "--torchrun", "--once", "--json"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, "-m", "coldstart.cli.main", *words, "--redis", store],
        env={name: value for name, value in os.environ.items() if not name.startswith(("COLDSTART_", "TORCHELASTIC_"))},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    groups = [line["report"]["group"] for line in lines if line["event"] == "serving"]
    assert [group["size"] for group in groups] == [2, 2]
    assert {group["index"] for group in groups} == {0, 1}
    assert len({group["name"] for group in groups}) == 1
    assert groups[0]["verdicts"] == groups[1]["verdicts"]
    assert {group["path"] for group in groups} == {"storage"}
