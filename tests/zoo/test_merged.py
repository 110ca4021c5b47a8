"""Mixtures of experts from storage: of what peers have not brought just the bytes are read, and the right ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from coldstart.arena import Arena
from coldstart.layout import Span, merged
from coldstart.skeletons.adoption import elements
from coldstart.skeletons.assembly import Order, build
from coldstart.testing.skeleton_contract import digests, join
from tests.zoo.families import families
from tests.zoo.family import Family

MIXTURES = {name: each for name, each in families().items() if each.kind in ("moe", "state space")}
CAST = {"GptOssForCausalLM: fp16", "RwkvForCausalLM: fp16"}
"""Those of which transformers keeps some tensors in float32 that are stored in float16."""

QUICK = {"MixtralForCausalLM: bf16", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM: bf16", "JambaForCausalLM"}
STEP = 4096


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(each, id=name, marks=[] if name in QUICK else [pytest.mark.zoo])
        for name, each in MIXTURES.items()
        if name not in CAST
    ],
)
async def test_only_what_is_missing_is_read(family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family.save(tmp_path)
    first, second = (build(Order(tmp_path, dtype=family.dtype)) for _ in range(2))
    assert isinstance(first.arena, Arena)
    assert isinstance(second.arena, Arena)
    layout = first.arena.layout
    assert (first.storage.partial, first.storage.reason) == (True, "")
    await first.storage.read([Span(0, layout.nbytes)], lambda span: None)
    ordinary = family.load(tmp_path)
    values = {**dict(ordinary.named_parameters(remove_duplicate=False)), **dict(ordinary.named_buffers())}
    for name, tensor in first.skeleton.carried(first.module).items():
        assert isinstance(tensor, torch.Tensor)
        assert torch.equal(elements(tensor), elements(values[name])), name

    steps = [Span(at, min(STEP, layout.nbytes - at)) for at in range(0, layout.nbytes, STEP)]
    for span in steps[::2]:  # what peers have brought
        with first.arena.reading(span) as views, second.arena.writing(span) as targets:
            join(targets)[:] = b"".join(views)
    count: list[int] = []
    landed: list[Span] = []
    preadv = os.preadv

    def counting(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        count.append(preadv(descriptor, buffers, offset))
        return count[-1]

    monkeypatch.setattr(os, "preadv", counting)
    await second.storage.read(steps[1::2], landed.append)
    kept = sum(  # what is stored in 16 bits and carried in 32
        piece.length // 2
        for span in steps[1::2]
        for piece in layout.pieces(span)
        if layout.tensors[piece.storage].dtype == "float32" and family.dtype == "bfloat16"
    )
    assert sum(count) + kept == sum(piece.length for span in steps[1::2] for piece in layout.pieces(span))
    assert merged(landed) == merged(steps[1::2])
    assert digests(first.arena) == digests(second.arena)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.zoo) for name in sorted(CAST)])
def test_one_that_is_cast_is_read_whole_and_says_why(name: str, tmp_path: Path) -> None:
    MIXTURES[name].save(tmp_path)
    storage = build(Order(tmp_path)).storage
    assert not storage.partial
    assert "float32 here" in storage.reason
