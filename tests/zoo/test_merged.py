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
from coldstart.transports.conversions import SIZES
from tests.zoo.families import families
from tests.zoo.family import Family

MIXTURES = {name: each for name, each in families().items() if each.kind in ("moe", "state space")}
QUICK = {
    "MixtralForCausalLM: asked for in bf16", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM: bf16", "JambaForCausalLM",
    "RwkvForCausalLM: fp16",
}  # fmt: skip
STEP = 4096


@pytest.mark.parametrize(
    "family",
    [pytest.param(each, id=name, marks=[] if name in QUICK else [pytest.mark.zoo]) for name, each in MIXTURES.items()],
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
    (stored,) = {each.dtype for each in first.checkpoint.tensors.values()}
    numbers = sum(
        piece.length // SIZES[layout.tensors[piece.storage].dtype]
        for span in steps[1::2]
        for piece in layout.pieces(span)
    )
    assert sum(count) == numbers * SIZES[stored]
    assert merged(landed) == merged(steps[1::2])
    assert digests(first.arena) == digests(second.arena)
