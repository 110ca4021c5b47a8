"""What ``coldstart inspect`` is told of checkpoints that lack weights, or have more than the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from coldstart_transformers import FACTORY
from coldstart_transformers.quiet import quiet
from safetensors.torch import load_file, save_file
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
)

from coldstart.errors import SkeletonError
from coldstart.ports import Rank
from coldstart.skeletons.adoption import adopt
from coldstart.testing.checkpoints import read_checkpoint

Q = "model.layers.0.self_attn.q_proj.weight"


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24)
    )


def tied() -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2))


def mixture() -> PreTrainedModel:
    small = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return MixtralForCausalLM(
        MixtralConfig(**small, num_key_value_heads=2, intermediate_size=24, num_local_experts=4)
    )


def found_in(
    path: Path, make: Callable[[], PreTrainedModel], change: Callable[[dict[str, torch.Tensor]], object]
) -> tuple[list[str], list[str]]:
    """What is lacking, and what is unused, once ``change`` was made to what the model has saved."""
    changed(path, make, change)
    checkpoint, skeleton = read_checkpoint(path), FACTORY.open()
    module = skeleton.survey(checkpoint, Rank(), "cpu")
    return list(skeleton.lacking(module, checkpoint)), list(skeleton.unused(module, checkpoint))


def changed(
    path: Path, make: Callable[[], PreTrainedModel], change: Callable[[dict[str, torch.Tensor]], object]
) -> None:
    with quiet():
        make().save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("make", [llama, tied, mixture], ids=["untied", "tied", "merged"])
def test_nothing_is_lacking_in_what_was_saved(make: Callable[[], PreTrainedModel], tmp_path: Path) -> None:
    assert found_in(tmp_path, make, lambda tensors: None) == ([], [])


def test_a_weight_that_is_not_there(tmp_path: Path) -> None:
    lacking, _ = found_in(tmp_path, llama, lambda tensors: tensors.pop(Q))
    assert lacking == [f"{Q} is not in the checkpoint"]


def test_a_weight_of_another_shape(tmp_path: Path) -> None:
    lacking, _ = found_in(tmp_path, llama, lambda tensors: tensors.update({Q: torch.zeros(8, 16)}))
    assert lacking == [f"{Q} is [16, 16] here, {Q} is [8, 16] in the checkpoint"]


def test_tensors_of_something_else_are_told_and_no_fault(tmp_path: Path) -> None:
    found = found_in(tmp_path, llama, lambda tensors: tensors.update({"score.weight": torch.zeros(2, 16)}))
    assert found == ([], ["score.weight"])


@pytest.mark.parametrize("gone", ["w1", "w2", "w3"])
def test_an_expert_that_is_not_there(gone: str, tmp_path: Path) -> None:
    experts = "model.layers.0.mlp.experts"
    merged = f"{experts}.down_proj" if gone == "w2" else f"{experts}.gate_up_proj"
    lacking, _ = found_in(
        tmp_path,
        mixture,
        lambda tensors: tensors.pop(f"model.layers.0.block_sparse_moe.experts.2.{gone}.weight"),
    )
    assert lacking == [
        f"{merged} is merged from 4 tensors .experts.*.{gone}.weight, of which the checkpoint has 3",
    ]
    checkpoint, skeleton = read_checkpoint(tmp_path), FACTORY.open()
    module = skeleton.build(checkpoint, Rank(), "cpu")
    adopt(module, skeleton.carried(module), "cpu")
    skeleton.finalise(module)
    assert skeleton.stored_names(module, checkpoint) is None
    with pytest.raises(SkeletonError, match=f"is not whole: {merged} is merged from 4 tensors"):
        skeleton.load(module, checkpoint)
