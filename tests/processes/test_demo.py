"""The main job in separate processes: four workers, one SIGKILL in mid-transfer, one storage read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from coldstart.checkpoint import read_checkpoint
from coldstart.cli.demo import _Stage
from coldstart.cli.demo_worker import Task
from coldstart.errors import ColdStartFailed
from coldstart.phases.states import Phase
from coldstart.report import Progress, Report

Write = Callable[..., Path]
pytestmark = pytest.mark.processes


def demo(*words: str, **environment: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-m", "coldstart.cli.main", "demo", "--json", *words],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, **environment},
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


def test_a_small_checkpoint_is_refused_at_once(tmp_path: Path, write_checkpoint: Write) -> None:
    code, outcome, stderr = demo("--checkpoint", str(write_checkpoint(tmp_path / "model", mib=3)))
    assert (code, outcome) == (2, {})
    assert "too few for a source to be killed in mid-transfer" in stderr
    assert len(stderr.splitlines()) == 1


@pytest.mark.timeout(120)
def test_the_operators_settings_do_not_change_its_course(tmp_path: Path, write_checkpoint: Write) -> None:
    checkpoint = str(write_checkpoint(tmp_path / "model", mib=24))
    settings = {"PATIENCE": "0", "STALL": "0.001", "SLOTS": "many", "REDIS": "none", "LEND_GBPS": "0.001"}
    code, outcome, stderr = demo("--checkpoint", checkpoint, **{f"COLDSTART_{k}": v for k, v in settings.items()})
    assert (code, outcome["outcome"]) == (0, "ok"), stderr


def test_a_worker_that_fails_is_the_outcome(tmp_path: Path, write_checkpoint: Write) -> None:
    checkpoint = str(write_checkpoint(tmp_path / "model", mib=6))
    code, outcome, stderr = demo("--checkpoint", checkpoint, COLDSTART_TRANSPORTS="nope")
    assert code == 9
    assert outcome["outcome"].startswith("w1 failed: no transport is called 'nope'")
    assert stderr == f"coldstart: demo: {outcome['outcome']}\n"


@pytest.mark.parametrize(("number", "times"), [(signal.SIGINT, 1), (signal.SIGTERM, 2), (signal.SIGHUP, 1)])
def test_a_signal_ends_it_in_order(
    number: signal.Signals, times: int, tmp_path: Path, write_checkpoint: Write
) -> None:
    checkpoint = str(write_checkpoint(tmp_path / "model", mib=24))
    with tempfile.TemporaryDirectory(prefix="cs") as place:  # short enough for a socket
        process = subprocess.Popen(
            [sys.executable, "-m", "coldstart.cli.main", "demo", "--checkpoint", checkpoint],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": place},
        )
        assert process.stderr is not None
        assert process.stderr.readline().startswith("w1 serves")
        assert workers_of(place)
        for _ in range(times):
            process.send_signal(number)
            time.sleep(0.05)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (128 + number, ""), err
        assert "Traceback" not in err
        assert not workers_of(place)
        assert list(Path(place).glob("coldstart-*")) == []


def workers_of(place: str) -> list[str]:
    """Live workers of the demo that has its temporary files in ``place``."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text()
        except OSError:
            continue
        if "demo_worker" in words and place in words:
            found.append(process.name)
    return found


class _Joiner:
    """A fourth worker as the demo follows it, of which everything was said before anybody looked."""

    name, started, served_at, killed_at, error = "w4", 0.0, None, None, ""

    def __init__(self, progress: Progress, report: Report | None) -> None:
        self.progress, self.report = progress, report

    async def until(self, done: Callable[[Any], bool], what: str) -> None:
        if not done(self):
            await anyio.sleep_forever()


class _Crew:
    def __init__(self, joiner: _Joiner) -> None:
        self._joiner = joiner

    async def start(self, task: Task) -> _Joiner:
        return self._joiner


def _report(nbytes: int) -> Report:
    fields: dict[str, object] = {field.name: () for field in msgspec.structs.fields(Report)}
    return Report(**{**fields, "bytes_storage": nbytes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("progress", "report", "outcome"),
    [
        (Progress(Phase.FALLBACK, "storage", 9, 9, 10, 0.0, 0.1, 1), None, "w4 read storage instead of a peer"),
        (Progress(Phase.FALLBACK, "storage", 0, 0, 10, 0.0, 0.1, 1), None, "w4 read storage instead of a peer"),
        (Progress(Phase.SERVE, "", 10, 10, 10, 0.0, 0.1, 1), _report(10), "w4 read storage instead of a peer"),
        (
            Progress(Phase.SERVE, "", 10, 10, 10, 0.0, 0.1, 1),
            _report(0),
            "w4 served before a source could be killed in mid-transfer",
        ),
    ],
)
async def test_a_joiner_that_cannot_lose_its_source_is_the_outcome_at_once(
    progress: Progress, report: Report | None, outcome: str, tmp_path: Path, write_checkpoint: Write
) -> None:
    stage = _Stage(read_checkpoint(write_checkpoint(tmp_path / "model")), quiet=True, verbose=0)
    with anyio.fail_after(1), pytest.raises(ColdStartFailed, match=outcome):
        await stage._kill_a_source(_Crew(_Joiner(progress, report)))  # type: ignore[arg-type]
