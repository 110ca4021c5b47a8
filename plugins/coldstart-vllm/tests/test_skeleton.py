"""An engine's module, cold-started: what it keeps, what fills it, and what is refused. Without vLLM."""

from __future__ import annotations

from collections.abc import Callable, Set
from pathlib import Path

import pytest
import torch
from coldstart_vllm.skeleton import EngineSkeleton
from torch import nn

import coldstart
from coldstart.errors import ColdstartError

Fill = Callable[[nn.Module], Set[str] | None]


async def start(checkpoint: Path, skeleton: EngineSkeleton) -> None:
    async with coldstart.join(checkpoint, skeleton=skeleton, redis="none") as replica:
        assert replica.report.verified


@pytest.mark.anyio
async def test_the_module_stays_itself_and_is_filled(checkpoint: Path, tiny: nn.Module, fill: Fill) -> None:
    expected = type(tiny)()
    fill(expected)
    objects = dict(tiny.named_parameters())
    skeleton = EngineSkeleton(tiny, "tiny", fill)
    assert skeleton.impossible(tiny) == ()
    await start(checkpoint, skeleton)
    assert skeleton.filled
    for name, parameter in tiny.named_parameters():
        assert parameter is objects[name]
        assert torch.equal(parameter, expected.get_parameter(name))
    assert float(tiny.get_parameter("scale")) == -1.0
    assert torch.equal(tiny.get_buffer("angles"), torch.arange(8.0))


@pytest.mark.anyio
async def test_a_module_that_does_not_say_what_it_loads(checkpoint: Path, tiny: nn.Module, fill: Fill) -> None:
    def silent(module: nn.Module) -> None:
        fill(module)

    skeleton = EngineSkeleton(tiny, "tiny", silent)
    with pytest.raises(ColdstartError, match="does not say which weights"):
        await start(checkpoint, skeleton)
    assert not skeleton.filled


@pytest.mark.anyio
async def test_a_parameter_that_nobody_fills(checkpoint: Path, tiny: nn.Module, fill: Fill) -> None:
    def partly(module: nn.Module) -> Set[str]:
        fill(module)
        return {"norm"}

    skeleton = EngineSkeleton(tiny, "tiny", partly)
    with pytest.raises(ColdstartError, match="has not filled merged"):
        await start(checkpoint, skeleton)
    assert not skeleton.filled


@pytest.mark.anyio
async def test_a_load_that_does_more_than_copy_fills_but_makes_no_truth(
    checkpoint: Path, tiny: nn.Module, fill: Fill
) -> None:
    def finishing(module: nn.Module) -> Set[str] | None:
        module.finished = True  # type: ignore[assignment]
        return fill(module)

    skeleton = EngineSkeleton(tiny, "tiny", finishing)
    with pytest.raises(ColdstartError, match=r"does more than fill tensors: it changes \.finished"):
        await start(checkpoint, skeleton)
    assert skeleton.filled
    expected = type(tiny)()
    fill(expected)
    assert torch.equal(tiny.get_parameter("merged"), expected.get_parameter("merged"))


@pytest.mark.anyio
async def test_memory_that_others_depend_on_is_not_taken_from_under_them(
    checkpoint: Path, tiny: nn.Module, fill: Fill
) -> None:
    tiny.rows = [tiny.get_parameter("merged").view(-1)]  # type: ignore[assignment]
    with pytest.raises(ColdstartError, match="merged cannot be given other memory"):
        await start(checkpoint, EngineSkeleton(tiny, "tiny", fill))


def test_hidden_modules_are_impossible(tiny: nn.Module, fill: Fill) -> None:
    tiny.hidden = [nn.Linear(2, 2)]  # type: ignore[assignment]
    (reason,) = EngineSkeleton(tiny, "tiny", fill).impossible(tiny)
    assert "hidden" in reason
