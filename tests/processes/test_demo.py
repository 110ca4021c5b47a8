"""The main job in separate processes: four workers, one SIGKILL in mid-transfer, one storage read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Write = Callable[..., Path]
pytestmark = pytest.mark.processes


def demo(*words: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-m", "coldstart.cli.main", "demo", "--json", *words],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


@pytest.mark.timeout(120)
def test_four_workers_one_killed_source_one_storage_read(tmp_path: Path, write_checkpoint: Write) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", mib=24)
    code, outcome, stderr = demo("--checkpoint", str(checkpoint))
    assert code == 0, (outcome, stderr)
    assert outcome["outcome"] == "ok"
    assert outcome["storage_reads"] == 1
    assert outcome["embeddings_equal"] is True
    workers = {worker["worker"]: worker for worker in outcome["workers"]}
    assert sorted(workers) == ["w1", "w2", "w3", "w4"]
    assert [workers[name]["path"] for name in sorted(workers)] == ["storage", "peer", "peer", "peer"]
    for worker in workers.values():
        assert worker["state"] == "SERVE"
        assert worker["verified"] is True
        assert worker["error"] is None
        assert worker["bytes_peer"] + worker["bytes_storage"] > 24 * 1024 * 1024
    survivor, kill = workers["w4"], outcome["kill"]
    assert kill["victim"] in survivor["sources"]
    assert len(survivor["sources"]) == 2
    assert survivor["attempts"] == 2
    assert survivor["bytes_storage"] == 0
    assert any(kill["victim"] in reason for reason in survivor["detours"])


def test_a_bad_checkpoint_is_one_line(tmp_path: Path) -> None:
    code, outcome, stderr = demo("--checkpoint", str(tmp_path / "nothing"))
    assert code == 3
    assert outcome == {}
    assert stderr.startswith("coldstart: no checkpoint at")
    assert len(stderr.splitlines()) == 1
