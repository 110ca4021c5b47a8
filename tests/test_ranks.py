"""Ranks with real weights, transports and a real store: each is built, and paired, by its own coordinates."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import coldstart
from coldstart import Group, Rank, config
from coldstart.config import Settings
from coldstart.errors import ColdstartError
from coldstart.replica import Replica


class Embeds(nn.Module):
    """The first stage of a pipeline."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)


class Head(nn.Module):
    """The last stage."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 50)


def stage(rank: Rank) -> nn.Module:
    """The stages differ in what they are made of."""
    return Embeds() if rank.pp == 0 else Head()


WHOLE = {**Embeds().state_dict(), **Head().state_dict()}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save_file(WHOLE, tmp_path / "model.safetensors")
    return tmp_path


@pytest.fixture
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return config.load({"directory": str(tmp_path_factory.mktemp("v")), "drain": 2.0}, environ={})


@asynccontextmanager
async def pipeline(
    name: str, checkpoint: Path, settings: Settings, *ranks: Rank
) -> AsyncIterator[tuple[Replica, ...]]:
    """One group whose ranks start side by side, serving for the block."""
    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(
                coldstart.join(
                    checkpoint,
                    skeleton=stage,
                    rank=rank,
                    group=Group(name, len(ranks), index),
                    worker=f"{name}{index}",
                    settings=settings,
                    wait=False,
                )
            )
            for index, rank in enumerate(ranks)
        ]
        with anyio.fail_after(30):
            for replica in replicas:
                await replica.ready()
        yield tuple(replicas)


STAGES = Rank(pp=0, pp_size=2), Rank(pp=1, pp_size=2)


async def test_each_stage_of_a_pipeline_is_its_own_module_and_pulls_from_its_counterpart(
    checkpoint: Path, settings: Settings
) -> None:
    async with (
        pipeline("old", checkpoint, settings, *STAGES) as old,
        pipeline("new", checkpoint, settings, *STAGES) as new,
    ):
        assert [type(replica.module) for replica in new] == [Embeds, Head]
        for replica in new:
            assert all(torch.equal(value, WHOLE[name]) for name, value in replica.module.state_dict().items())
        assert len({replica.report.shard for replica in (*old, *new)}) == 2
        assert [replica.report.sources for replica in new] == [("old0",), ("old1",)]
        assert [report.path if (report := replica.report.group) else None for replica in new] == ["peer", "peer"]
        assert [report.path if (report := replica.report.group) else None for replica in old] == ["storage"] * 2


async def test_target_and_draft_pair_with_their_own_kind(checkpoint: Path, settings: Settings) -> None:
    roles = Rank(role="target"), Rank(role="draft")
    async with pipeline("old", checkpoint, settings, *roles), pipeline("new", checkpoint, settings, *roles) as new:
        assert [replica.report.sources for replica in new] == [("old0",), ("old1",)]


async def test_a_rank_that_torchrun_started_finds_its_group(
    checkpoint: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "job", "RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    async with coldstart.join(checkpoint, skeleton=stage, group="torchrun", settings=settings) as replica:
        assert replica.report.group is None, "one rank is no group"
    monkeypatch.setenv("WORLD_SIZE", "2")
    lonely = Settings(redis="none")
    async with coldstart.join(checkpoint, skeleton=stage, rank=Rank(), settings=lonely) as replica:
        group = replica.report.group
        assert group is not None
        assert (group.size, group.index, group.alone) == (2, 0, "coordination is switched off")
    async with coldstart.join(checkpoint, skeleton=stage, settings=lonely) as replica:
        assert replica.report.group is None, "who tells no rank is asked for none"


@asynccontextmanager
async def lenders(checkpoint: Path, settings: Settings, *modules: nn.Module) -> AsyncIterator[list[str]]:
    """An engine's stages, which it has loaded by itself, lent as one group; gives what each of them failed with."""
    async with anyio.create_task_group() as tasks:
        failed: list[str] = []
        told = [anyio.Event() for _ in modules]

        async def lend(index: int, module: nn.Module) -> None:
            group = Group("engine", len(modules), index)
            lent = coldstart.lend(
                module, checkpoint, skeleton=stage, rank=STAGES[index], group=group, worker=f"e{index}",
                settings=settings,
            )  # fmt: skip
            try:
                async with lent:
                    told[index].set()
                    await anyio.sleep_forever()
            except ColdstartError as error:
                failed.append(str(error))
                told[index].set()

        for index, module in enumerate(modules):
            tasks.start_soon(lend, index, module)
        with anyio.fail_after(30):
            for each in told:
                await each.wait()
        yield failed
        tasks.cancel_scope.cancel()


def loaded(rank: Rank) -> nn.Module:
    module = stage(rank)
    module.load_state_dict({name: WHOLE[name] for name in module.state_dict()})
    return module


async def test_a_group_joins_from_ranks_that_an_engine_has_loaded(checkpoint: Path, settings: Settings) -> None:
    async with lenders(checkpoint, settings, *map(loaded, STAGES)) as failed:
        assert not failed
        async with pipeline("new", checkpoint, settings, *STAGES) as new:
            assert [replica.report.sources for replica in new] == [("e0",), ("e1",)]
            for replica in new:
                assert all(torch.equal(value, WHOLE[name]) for name, value in replica.module.state_dict().items())


async def test_ranks_of_which_one_is_not_what_was_verified_are_not_lent(checkpoint: Path, settings: Settings) -> None:
    """The other rank, whose weights are right, ends with the same answer."""
    spoilt = loaded(STAGES[1])
    with torch.no_grad():
        next(spoilt.parameters()).add_(1)
    async with (
        pipeline("old", checkpoint, settings, *STAGES),
        lenders(checkpoint, settings, loaded(STAGES[0]), spoilt) as failed,
    ):
        assert len(failed) == 2
        async with pipeline("new", checkpoint, settings, *STAGES) as new:
            assert [replica.report.sources for replica in new] == [("old0",), ("old1",)]
