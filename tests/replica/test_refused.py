"""Arguments that cannot be what they are taken for are refused in one line, before anything is started."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import coldstart
from coldstart.config import Settings
from coldstart.errors import ConfigError, SkeletonError, UnknownPlugin
from coldstart.ports import Rank
from coldstart.skeletons.module import ModuleSkeleton


async def test_a_requested_dtype_is_kept_or_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(8, 8), "bias": torch.ones(8)}, tmp_path / "model.safetensors")
    settings = Settings(redis="none", cache="none")

    def linear() -> nn.Module:
        return nn.Linear(8, 8)

    async with coldstart.join(tmp_path, skeleton=linear, dtype="bfloat16", settings=settings) as replica:
        assert {parameter.dtype for parameter in replica.module.parameters()} == {torch.bfloat16}
    with pytest.raises(ConfigError, match="give it to your builder"):
        async with coldstart.join(tmp_path, skeleton=ModuleSkeleton(linear), dtype="bfloat16", settings=settings):
            pass


@pytest.mark.parametrize("skeleton", [nn.Linear(8, 8), 7, None])
async def test_what_is_no_skeleton_is_refused(checkpoint: Path, skeleton: str) -> None:
    with pytest.raises(ConfigError, match=r"skeleton is (a module|7|None); give a name, a builder, or a function"):
        async with coldstart.join(checkpoint, skeleton=skeleton, settings=Settings(redis="none", cache="none")):
            pass


@pytest.mark.parametrize(
    ("rank", "message"),
    [
        (Rank(pp=2, pp_size=2), "rank pp=2 of pp_size=2 cannot be; ranks are counted from 0"),
        (Rank(tp=1), "rank tp=1 of tp_size=1 cannot be"),
        (Rank(ep=-1, ep_size=2), "rank ep=-1 of ep_size=2 cannot be"),
        (Rank(pp_size=0), "rank pp=0 of pp_size=0 cannot be"),
        (Rank(dp=-1), "rank dp=-1 cannot be"),
        (0, "rank is 0; give a coldstart.Rank"),
    ],
)
async def test_a_rank_that_cannot_be_is_refused(checkpoint: Path, rank: Rank, message: str) -> None:
    settings = Settings(redis="none", cache="none")
    with pytest.raises(ConfigError, match=message):
        async with coldstart.join(checkpoint, skeleton="tensors", rank=rank, settings=settings):
            pass
    with pytest.raises(ConfigError, match=message):
        async with coldstart.lend(nn.Linear(8, 8), checkpoint, skeleton="tensors", rank=rank, settings=settings):
            pass


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dtype": torch.bfloat16}, r"dtype is torch\.bfloat16; give its name"),
        ({"dtype": None}, "dtype is None; give its name"),
        ({"device": torch.device("cpu")}, r"device is device\(type='cpu'\); give its name"),
        ({"revision": 7}, "revision is 7; give its name"),
        ({"revision": "\ud800"}, "which is not Unicode"),
        ({"group": "ours"}, "group is 'ours'; give a coldstart"),
        ({"group": 7}, "group is 7; give a coldstart"),
    ],
)
async def test_names_are_texts(checkpoint: Path, given: dict[str, str], message: str) -> None:
    settings = Settings(redis="none", cache="none")
    with pytest.raises(ConfigError, match=message):
        async with coldstart.join(checkpoint, skeleton="tensors", settings=settings, **given):  # type: ignore[arg-type]
            pass


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "lend was given no module"),
        (nn.Linear, "the class Linear cannot be lent; give the nn.Module that holds the weights"),
        ({"weight": torch.ones(1)}, "a dict cannot be lent"),
        (7, "a int cannot be lent"),
    ],
)
async def test_only_a_module_is_lent(checkpoint: Path, given: nn.Module, message: str) -> None:
    settings = Settings(redis="none", cache="none")
    with pytest.raises(ConfigError, match=message):
        async with coldstart.lend(given, checkpoint, skeleton="tensors", settings=settings):
            pass


async def test_a_builder_is_made_before_it_is_given(checkpoint: Path) -> None:
    with pytest.raises(SkeletonError, match="ModuleSkeleton factory made a ModuleSkeleton; it must return"):
        async with coldstart.join(checkpoint, skeleton=ModuleSkeleton, settings=Settings(redis="none", cache="none")):
            pass


async def test_a_failed_start_is_one_plain_error(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(coldstart.CheckpointError, match="no checkpoint at"):
        async with coldstart.join(tmp_path / "nothing", settings=settings):
            raise AssertionError("not reached")


async def test_an_unknown_skeleton_names_what_is_installed(settings: Settings, checkpoint: Path) -> None:
    with pytest.raises(UnknownPlugin, match=r"no skeleton is called 'nosuch'; installed are: .*tensors"):
        async with coldstart.join(checkpoint, skeleton="nosuch", settings=settings):
            raise AssertionError("not reached")


async def test_an_unknown_transport_names_what_is_installed(settings: Settings, checkpoint: Path) -> None:
    chosen = msgspec.structs.replace(settings, transports="pigeon")
    with pytest.raises(UnknownPlugin, match=r"no transport is called 'pigeon'; installed are: .*tcp"):
        async with coldstart.join(checkpoint, skeleton="tensors", settings=chosen):
            raise AssertionError("not reached")
