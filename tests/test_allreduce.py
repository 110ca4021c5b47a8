"""The consensus over a real process group: what all ranks say, and what is left when one of them dies."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from anyio.from_thread import start_blocking_portal
from safetensors.torch import save_file

from coldstart.allreduce import AllReduce
from coldstart.bus.embedded import embedded
from coldstart.errors import ConfigError

pytestmark = pytest.mark.processes

SIZE = 3

# Ranks are forked, because each import of torch costs seconds.
SCRIPT = """
import datetime, json, os, sys, time
import anyio
import torch.distributed as dist
import coldstart
from coldstart.allreduce import AllReduce
from coldstart.config import Settings
from coldstart.errors import ColdStartFailed

case, place, size, redis = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]

async def answers(rank, consensus):
    said = {}
    for question, yes in (("path", True), ("ready", case != "one says no" or rank != 1)):
        if case == "one dies" and question == "ready" and rank == 1:
            os.kill(os.getpid(), 9)
        asked = "other" if case == "out of step" and question == "ready" and rank == 1 else question
        seconds = 1.0 if case == "one is late" else 20.0
        if case == "one is late" and question == "ready" and rank == 1:
            await anyio.sleep(3.0)
        try:
            said[question] = await consensus.all_agree(asked, yes, seconds)
        except (RuntimeError, TimeoutError) as error:
            said[question] = type(error).__name__
    return said

class Dying:
    def __init__(self, inner, rank):
        self.inner, self.rank = inner, rank

    async def all_agree(self, question, yes, seconds):
        if case == "a death in it" and question == "ready" and self.rank == 1:
            os.kill(os.getpid(), 9)
        return await self.inner.all_agree(question, yes, seconds)

async def cold_start(rank, consensus):
    group = coldstart.Group("run", size, rank)
    replica = None
    try:
        async with coldstart.join(
            os.path.join(place, "model"), skeleton="tensors", rank=group.tensor_parallel, group=group,
            consensus=Dying(consensus, rank), settings=Settings(redis=redis), worker=f"rank{rank}", wait=False,
        ) as replica:
            await replica.ready()
            report = replica.report
    except ColdStartFailed:
        report = replica.report
    said = [str(verdict) for verdict in report.group.verdicts]
    return {"state": report.state, "path": report.group.path, "verdicts": said, "alone": report.group.alone}

def rank_of(rank):
    store = dist.FileStore(os.path.join(place, "rendezvous"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=datetime.timedelta(seconds=30))
    said = anyio.run(cold_start if redis else answers, rank, AllReduce())
    with open(os.path.join(place, f"{rank}.json"), "w") as file:
        json.dump(said, file)
    os._exit(0)

children = [child for rank in range(size) if (child := os.fork()) or rank_of(rank)]
for child in children:
    os.waitpid(child, 0)
"""


def play(case: str, place: Path, redis: str = "") -> list[Any]:
    """What each rank has got; None of one that died. With a store, or ``none``, they are cold starts."""
    subprocess.run([sys.executable, "-c", SCRIPT, case, str(place), str(SIZE), redis], check=True, timeout=50)
    files = [place / f"{rank}.json" for rank in range(SIZE)]
    return [json.loads(file.read_text()) if file.exists() else None for file in files]


@pytest.mark.parametrize(
    ("case", "ready"),
    [("all say yes", True), ("one says no", False), ("out of step", False)],
    ids=["all say yes", "one says no", "out of step"],
)
def test_yes_is_what_all_ranks_say_to_the_same_question(case: str, ready: bool, tmp_path: Path) -> None:
    assert play(case, tmp_path) == [{"path": True, "ready": ready}] * SIZE


def test_a_rank_that_dies_is_an_error_in_the_others_and_not_a_wait(tmp_path: Path) -> None:
    zero, one, two = play("one dies", tmp_path)
    assert one is None
    assert zero == two == {"path": True, "ready": "RuntimeError"}


def test_a_rank_that_is_late_is_not_waited_for_longer_than_was_said(tmp_path: Path) -> None:
    said = play("one is late", tmp_path)
    assert said[0]["ready"] == said[2]["ready"] == "TimeoutError"


@pytest.fixture
def model(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    save_file({"weight": torch.zeros(1000)}, tmp_path / "model" / "model.safetensors")


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("v")
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(embedded(directory)) as url:
        yield url


def test_without_a_store_it_decides_for_all_ranks(tmp_path: Path, model: None) -> None:
    verdicts = ["path: no: the host's consensus was a no", "ready: yes"]
    told = {"state": "SERVE", "path": "storage", "verdicts": verdicts, "alone": ""}
    assert play("nobody dies", tmp_path, "none") == [told] * SIZE


def test_a_rank_that_dies_in_it_leaves_the_others_with_what_the_record_says(
    tmp_path: Path, model: None, store: str
) -> None:
    zero, one, two = play("a death in it", tmp_path, store)
    assert one is None
    assert zero == two
    assert zero["state"] == "FAILED"
    assert zero["verdicts"][-1].endswith(": the host's consensus was a no")


def test_a_group_that_waits_for_the_dead_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_backend", lambda group: "nccl")
    with pytest.raises(ConfigError, match="over nccl"):
        AllReduce()
