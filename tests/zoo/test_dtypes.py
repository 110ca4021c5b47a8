"""Families in dtypes that they are not stored in: chunk by chunk just what their library's own loader makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch
from transformers import PreTrainedModel

from coldstart.layout import Span
from coldstart.ports import Answering
from coldstart.skeletons.adoption import elements
from coldstart.skeletons.assembly import Order, build
from tests.zoo.families import families
from tests.zoo.family import Family

FAMILIES = {
    name: each
    for name, each in families().items()
    if each.library == "transformers" and each.kind != "quantised" and not each.dtype and each.skeleton == "auto"
}
QUICK = {"MixtralForCausalLM: bf16", "DeepseekV3ForCausalLM", "T5ForConditionalGeneration: fp16", "CLIPModel"}
COMPUTED = {
    f"MarianMTModel: {special}": "model.encoder.embed_positions.weight"
    for special in ("sinusoidal positions", "fp16, sinusoidal positions")
}
"""Those with weights that the library does not store, and computes as it loads the others."""
DTYPES = ("float32", "bfloat16", "float16")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "family",
    [pytest.param(each, id=name, marks=[] if name in QUICK else [pytest.mark.zoo]) for name, each in FAMILIES.items()],
)
async def test_a_requested_dtype(family: Family, dtype: str, tmp_path: Path) -> None:
    family.save(tmp_path)
    built = build(Order(tmp_path, dtype=dtype))
    if family.name in COMPUTED:
        assert built.storage.reason == f"{COMPUTED[family.name]}: not mapped to a tensor of the checkpoint"
        return
    assert built.storage.reason == ""
    await built.storage.read([Span(0, built.arena.layout.nbytes)], lambda span: None)
    ordinary = cast("Answering[PreTrainedModel]", built.skeleton).ordinary(built.checkpoint)
    values = {
        **dict(ordinary.named_parameters(remove_duplicate=False)),
        **dict(ordinary.named_buffers(remove_duplicate=False)),
    }
    for name, tensor in built.skeleton.carried(built.module).items():
        assert isinstance(tensor, torch.Tensor)
        assert tensor.dtype == values[name].dtype, name
        assert torch.equal(elements(tensor), elements(values[name])), name
