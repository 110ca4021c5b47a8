"""``coldstart drain``: a real worker leaves when it is asked to, and what stands in its way is one line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coldstart.bus.redis import RedisBus
from coldstart.config import Settings
from coldstart.ports import Advert
from coldstart.replica import join

pytestmark = pytest.mark.processes

OneLine = Callable[[str], str]


@pytest.fixture
def worker(coldstart: Any, checkpoint: Path) -> Iterator[subprocess.Popen[str]]:
    """A worker that serves, called w1."""
    words = ("worker", "--checkpoint", str(checkpoint), "--skeleton", "tensors", "--name", "w1", "--json")
    command, kept = coldstart.command(words), coldstart.environment
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=kept)
    assert process.stdout is not None
    while json.loads(process.stdout.readline())["event"] != "serving":
        pass
    yield process
    if process.poll() is None:
        process.terminate()
    process.communicate(timeout=30)


async def test_a_worker_that_does_not_answer_is_one_line(coldstart: Any, store: str, one_line: OneLine) -> None:
    """As one that is stopped, or cut off, until its advert is forgotten."""
    bus = await RedisBus.open(store)
    await bus.advertise("a" * 32, Advert("dead", "dead.1", "1", 1, "layout", 2, 4, 4, ("tcp",), "10.0.0.9", "cpu"), 60)
    await bus.aclose()
    done = await coldstart.beside("drain", "dead", "--seconds", "0.5")
    assert (done.returncode, done.stdout) == (1, "")
    assert "dead on 10.0.0.9 has not answered within" in one_line(done.stderr)


def test_a_worker_leaves_and_its_process_ends(coldstart: Any, worker: subprocess.Popen[str], one_line: OneLine) -> None:
    unknown = coldstart("drain", "w2")
    assert unknown.returncode == 2
    assert "did you mean w1?" in one_line(unknown.stderr)
    done = coldstart("drain", "w1", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    (told,) = json.loads(done.stdout)["drained"]
    assert (told["worker"], told["transfers"]) == ("w1", 0)
    output, _ = worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert [json.loads(line)["event"] for line in output.splitlines()][-2:] == ["draining", "gone"]


async def test_a_host_serves_on(coldstart: Any, directory: Path, checkpoint: Path) -> None:
    async with join(checkpoint, skeleton="tensors", worker="one", settings=Settings(directory=str(directory))) as one:
        done = await coldstart.beside("drain", "one")
        await one.drained()
        assert one.module is not None
        said = await coldstart.beside("peers")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("one leaves; no transfers in flight\none lends nothing any more, after ")
    assert said.stdout.startswith("nobody holds weights: ")


def test_without_a_store_nobody_is_called_so(coldstart: Any, one_line: OneLine, directory: Path) -> None:
    done = coldstart("drain", "w1")
    assert done.returncode == 2
    assert "no worker called 'w1'" in one_line(done.stderr)
    assert not directory.exists()
