"""Disks that are full, where coldstart writes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio.to_thread
import pytest
from rig.case import Case
from rig.fleet import Fleet

pytestmark = pytest.mark.faults
fault = pytest.mark.fault

START = 10.0
"""An embedded server that does not come up is given up after this."""
COMMAND = 8.0
"""One command, from the interpreter's start to its end."""

Disk = Callable[..., Path]


@pytest.fixture
def disk(place: Path) -> Iterator[Disk]:
    """``disk(inodes=N)`` or ``disk(size="64k")``: a small file system of its own."""
    with ExitStack() as mounts:

        def make(**options: object) -> Path:
            where = place / "disk"
            where.mkdir()
            chosen = ",".join(f"{name}={value}" for name, value in {"mode": "700", **options}.items())
            done = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", chosen, "tmpfs", str(where)], capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
            mounts.callback(subprocess.run, ["umount", "-l", str(where)], check=True)
            return where

        yield make


@pytest.mark.parametrize(
    ("inodes", "reason"),
    [
        pytest.param(1, "No space left on device", id="no file fits"),
        pytest.param(5, "ended while starting", id="no socket fits"),
    ],
)
@fault("disk of the embedded store full", "before DISCOVER", "storage; the reason", START)
async def test_the_embedded_store_on_a_full_disk(
    inodes: int, reason: str, disk: Disk, workers: Fleet, case: Case
) -> None:
    full = disk(nr_inodes=inodes)
    with case.clock():
        worker = await workers.start("worker", redis="", directory=str(full))
        report = await worker.serving()
    assert report.path == "storage"
    assert reason in report.detours[0]
    await workers.check(worker)
    await worker.leave()


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
@fault("disk of the output full", "worker --once", "exit code 1, 'output is lost'", COMMAND)
async def test_a_result_on_a_full_disk(form: tuple[str, ...], disk: Disk, weights: Path, case: Case) -> None:
    full = disk(size="16k")
    (full / "fill").write_bytes(bytes(16 * 1024))
    with case.clock():
        done = await anyio.to_thread.run_sync(_once, weights, full / "result", full.parent, *form)
    assert done.returncode == 1
    assert done.stderr.count("output is lost: No space left on device") == 1
    assert "Traceback" not in done.stderr


def _once(checkpoint: Path, result: Path, place: Path, *form: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coldstart.cli.main", "worker", "--checkpoint", str(checkpoint), "--once", *form]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("COLDSTART_", "OTEL_"))}
    with result.open("w") as stdout:
        return subprocess.run(
            [*command, "--skeleton", "tensors", "--redis", "none"],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=50,
            env=clean,
            cwd=place,
            check=False,
        )
