"""Which rank hosts what: maps, functions, text, and what is refused."""

from __future__ import annotations

import re

import pytest
from coldstart_diffusers import FACTORY, Components
from coldstart_diffusers.hosting import hosted, parsed, written

from coldstart.errors import ConfigError
from coldstart.ports import Rank

NAMES = ("text_encoder", "transformer", "vae")
SPLIT: Components = {"text_encoder": 0, "transformer": (1, 2), "vae": 0}


def by_rank(rank: Rank) -> set[str]:
    return {"transformer"} if rank.pp else {"text_encoder", "vae"}


def rank(index: int, size: int = 3) -> Rank:
    return Rank(pp=index, pp_size=size)


@pytest.mark.parametrize(
    ("components", "index", "found"),
    [
        (None, 0, set(NAMES)),
        (SPLIT, 0, {"text_encoder", "vae"}),
        (SPLIT, 1, {"transformer"}),
        (SPLIT, 2, {"transformer"}),
        ({"transformer": 1}, 0, {"text_encoder", "vae"}),
        ({"transformer": 1}, 1, set(NAMES)),
        ({"vae": None}, 1, {"text_encoder", "transformer"}),
        (by_rank, 0, {"text_encoder", "vae"}),
        (by_rank, 2, {"transformer"}),
    ],
)
def test_what_a_rank_hosts(components: Components, index: int, found: set[str]) -> None:
    assert hosted(components, rank(index), NAMES) == found


@pytest.mark.parametrize(
    ("components", "message"),
    [
        ({"unet": 0}, "the pipeline has no component with weights called unet; it has text_encoder, transformer, vae"),
        (lambda rank: ["unet"], "the pipeline has no component with weights called unet"),
        ({"vae": 3}, "vae is for rank 3 of 3; say rank="),
        ({"vae": -1}, "vae is for rank -1 of 3; say rank="),
        (dict.fromkeys(NAMES, 1), "rank 0 hosts no component of the pipeline"),
        (lambda rank: [], "rank 0 hosts no component of the pipeline"),
    ],
)
def test_what_is_refused(components: Components, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        hosted(components, rank(0), NAMES)


def test_as_text() -> None:
    assert parsed("") is None
    assert parsed("text_encoder=0, transformer=2+1,vae=none") == {
        "text_encoder": (0,),
        "transformer": (2, 1),
        "vae": None,
    }
    for wrong in ("text_encoder", "vae=x", "vae=1+"):
        with pytest.raises(ConfigError, match="is not NAME=RANK"):
            parsed(wrong)
    with pytest.raises(ConfigError, match="components names vae twice; several ranks are written vae=0"):
        parsed("vae=0, vae=1")


@pytest.mark.parametrize(
    "wrong",
    [7, ["unet"], {"unet"}, {"unet": "0"}, {"unet": 0.0}, {"unet": [0, "1"]}, {7: 0}, {None: 0}],
)
def test_what_is_no_map_of_ranks_is_refused(wrong: Components) -> None:
    with pytest.raises(ConfigError, match=r"^components (is|has) .*; give "):
        FACTORY.open(components=wrong)


def test_the_map_is_part_of_the_identity() -> None:
    def identity(components: Components | str) -> str:
        return FACTORY.open(dtype="bfloat16", components=components).identity

    assert identity("") == "diffusers/bfloat16"
    assert identity({"vae": 1, "unet": (2, 0)}) == identity("unet=0+2,vae=1") == "diffusers/bfloat16/unet=0+2,vae=1"
    assert identity({"vae": None}) == "diffusers/bfloat16/vae=none"
    assert identity(by_rank) == f"diffusers/bfloat16/{by_rank.__module__}.by_rank"
    assert written(None) == ""
