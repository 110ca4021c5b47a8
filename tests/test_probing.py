"""The numeric probe: right bytes that are read in another way are not served; anything else about it is only said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import coldstart
from coldstart import config
from coldstart.config import Settings
from coldstart.errors import IntegrityError, SkeletonError
from coldstart.identity import Truth, decode_truth
from coldstart.layout import Layout
from coldstart.probe import MOST_NUMBERS, Probe, differs
from coldstart.skeletons.module import ModuleSkeleton

# ------------------------------------------------------------------------------------ the comparison


@pytest.mark.parametrize(
    ("expected", "got", "words"),
    [
        ((1.0, -2.0), (1.0, -2.0), ""),
        ((1.0, -200.0), (1.9, -200.0), ""),
        ((1.0, -2.0), (1.1, -2.0), "number 0 expected 1, got 1.1 (within 0.01 of 2)"),
        ((1.0, -2.0), (1.0,), "2 numbers expected, got 1"),
        ((0.0,), (1e-9,), "number 0 expected 0, got 1e-09 (within 0.01 of 0)"),
        ((float("nan"), 1.0), (float("nan"), 1.0), ""),
        ((float("nan"), 1.0), (1.0, 1.0), "number 0 expected nan, got 1 (within 0.01 of 1)"),
        ((1.0,), (float("nan"),), "number 0 expected 1, got nan (within 0.01 of 1)"),
        ((float("inf"), 1.0), (float("inf"), 1.0), ""),
        ((float("inf"), 1.0), (float("-inf"), 1.0), "number 0 expected inf, got -inf (within 0.01 of 1)"),
    ],
)
def test_a_difference_in_words(expected: tuple[float, ...], got: tuple[float, ...], words: str) -> None:
    assert differs(Probe("it", expected, 0.5), Probe("it", got, 0.01)) == words


def test_it_travels_with_the_truth_but_does_not_name_it() -> None:
    layout = Layout((), (), 256 * 1024)
    bare, probed = (Truth("a" * 32, layout, "x", b"", probe) for probe in (None, Probe("it", (1.0, 2.5), 0.1)))
    assert bare.root == probed.root
    assert decode_truth(probed.encode(), shard="a" * 32).probe == Probe("it", (1.0, 2.5), 0.1)
    endless = Truth("a" * 32, layout, "x", b"", Probe("it", (0.0,) * (MOST_NUMBERS + 1), 0.1))
    with pytest.raises(IntegrityError, match="a probe of 257 numbers"):
        decode_truth(endless.encode(), shard="a" * 32)


# ---------------------------------------------------------------------------------- whole cold starts


class Attention(nn.Module):
    """Two square weights and a constant that nobody stores: whatever goes wrong here, the bytes stay the same."""

    def __init__(self, *, base: float = 100.0, heads: tuple[int, ...] = (0, 1), turned: bool = False) -> None:
        super().__init__()
        self.into = nn.Linear(8, 8, bias=False)
        self.out = nn.Linear(8, 8, bias=False)
        self.register_buffer("frequencies", 1.0 / base ** (torch.arange(8) / 8), persistent=False)
        self.heads, self.turned = list(heads), turned

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.into(tokens * self.frequencies).unflatten(-1, (2, 4))[..., self.heads, :].flatten(-2)
        return hidden @ (self.out.weight if self.turned else self.out.weight.t())


def ask(module: nn.Module) -> torch.Tensor:
    answer = module(torch.linspace(-1, 1, 24).reshape(3, 8))
    assert isinstance(answer, torch.Tensor)
    return answer


def raises(module: nn.Module) -> torch.Tensor:
    raise RuntimeError("no kernel for this device\nbacktrace follows")


def other(module: nn.Module) -> torch.Tensor:
    return ask(module) + 1


def builder(make: Callable[[], nn.Module], probe: Callable[[nn.Module], torch.Tensor] | None = ask) -> object:
    return ModuleSkeleton(make, name="attention", probe=probe)


@pytest.fixture
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return config.load({"directory": str(tmp_path_factory.mktemp("v")), "drain": 2.0}, environ={})


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    save_file(Attention().state_dict(), tmp_path / "model.safetensors")
    return tmp_path


async def test_equal_numbers_are_said(settings: Settings, checkpoint: Path) -> None:
    async with (
        coldstart.join(checkpoint, skeleton=builder(Attention), worker="a", settings=settings) as a,
        coldstart.join(checkpoint, skeleton=builder(Attention), worker="b", settings=settings) as b,
    ):
        assert (a.report.path, b.report.path) == ("storage", "peer")
        assert (a.report.probe, b.report.probe) == ("equal to the published numbers",) * 2
        assert torch.equal(ask(a.module), ask(b.module))


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda: Attention(base=10000.0), id="constants"),
        pytest.param(lambda: Attention(heads=(1, 0)), id="heads"),
        pytest.param(lambda: Attention(turned=True), id="transposed"),
    ],
)
@pytest.mark.parametrize("source", ["peer", "storage"])
async def test_right_bytes_in_a_wrong_module_are_not_served(
    wrong: Callable[[], nn.Module], source: str, settings: Settings, checkpoint: Path
) -> None:
    """From a peer, and from its own storage read after the truth was published."""
    async with coldstart.join(checkpoint, skeleton=builder(Attention), worker="a", settings=settings) as right:
        if source == "storage":
            await right.drain()
        with pytest.raises(SkeletonError, match=r"ask differs from the published one: number 0 expected .*, got .*"):
            async with coldstart.join(checkpoint, skeleton=builder(wrong), worker="b", settings=settings):
                raise AssertionError("not reached")
        async with coldstart.join(checkpoint, skeleton=builder(Attention), worker="c", settings=settings) as third:
            assert third.report.sources == (("a",) if source == "peer" else ())
            assert third.report.probe == "equal to the published numbers"


async def test_a_probe_that_raises_where_others_have_numbers_is_a_refusal(
    settings: Settings, checkpoint: Path
) -> None:
    async with coldstart.join(checkpoint, skeleton=builder(Attention), worker="a", settings=settings):
        with pytest.raises(SkeletonError, match="the probe raised RuntimeError: no kernel for this device, which gave"):
            async with coldstart.join(checkpoint, skeleton=builder(Attention, raises), worker="b", settings=settings):
                raise AssertionError("not reached")


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (raises, ask, "not compared: no numbers were published with the truth"),
        (raises, raises, "the probe raised RuntimeError: no kernel for this device"),
        (None, ask, "not compared: no numbers were published with the truth"),
        (ask, None, ""),
        (other, ask, "not compared: the published numbers are of tests.test_probing.other, ours of"),
    ],
)
async def test_what_cannot_be_compared_is_only_said(
    first: Callable[[nn.Module], torch.Tensor] | None,
    second: Callable[[nn.Module], torch.Tensor] | None,
    said: str,
    settings: Settings,
    checkpoint: Path,
) -> None:
    async with (
        coldstart.join(checkpoint, skeleton=builder(Attention, first), worker="a", settings=settings),
        coldstart.join(checkpoint, skeleton=builder(Attention, second), worker="b", settings=settings) as b,
    ):
        assert b.report.verified
        assert b.report.probe.startswith(said.replace("tests.test_probing", other.__module__)) or said in b.report.probe
        assert bool(b.report.probe) is bool(said)


async def test_without_a_store_nothing_is_compared(checkpoint: Path) -> None:
    alone = config.load({"redis": "none"}, environ={})
    async with coldstart.join(checkpoint, skeleton=builder(Attention), settings=alone) as replica:
        assert replica.report.probe == "not compared: coordination is switched off"
