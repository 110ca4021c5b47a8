"""What ``coldstart inspect`` is told of checkpoints that lack weights, or have more than the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from coldstart_transformers import FACTORY
from coldstart_transformers.quiet import quiet
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from coldstart.ports import Rank
from coldstart.testing.checkpoints import read_checkpoint

Q = "model.layers.0.self_attn.q_proj.weight"


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24)
    )


def tied() -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2))


def found_in(
    path: Path, make: Callable[[], PreTrainedModel], change: Callable[[dict[str, torch.Tensor]], object]
) -> tuple[list[str], list[str]]:
    """What is lacking, and what is unused, once ``change`` was made to what the model has saved."""
    with quiet():
        make().save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    checkpoint, skeleton = read_checkpoint(path), FACTORY.open()
    module = skeleton.survey(checkpoint, Rank(), "cpu")
    return list(skeleton.lacking(module, checkpoint)), list(skeleton.unused(module, checkpoint))


@pytest.mark.parametrize("make", [llama, tied], ids=["untied", "tied"])
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
