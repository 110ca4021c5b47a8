"""A config that asks for far more than its checkpoint holds ends in one line, before there is memory for it."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
from coldstart_transformers import FACTORY
from coldstart_transformers.quiet import quiet
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from coldstart.errors import SkeletonError
from coldstart.ports import Rank
from coldstart.testing.checkpoints import read_checkpoint


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24)
    )


def gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2))


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        (llama(), {"vocab_size": 10**12}),
        (llama(), {"vocab_size": 50_000_000}),
        (llama(), {"hidden_size": 2**20, "head_dim": 2**19}),
        (llama(), {"num_hidden_layers": 10**9}),
        (gpt2(), {"n_positions": 10**10}),
    ],
    ids=["more than any machine has", "more than it has", "wide", "deep", "long"],
)
def test_it_is_refused_before_anything_is_allocated(
    model: PreTrainedModel, asked: dict[str, int], tmp_path: Path
) -> None:
    with quiet():
        model.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **asked}))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    message = r"the config.json of .* asks for at least [\d,]+ numbers in [\d,]+ tensors"
    with pytest.raises(SkeletonError, match=message) as caught:
        FACTORY.open().build(read_checkpoint(tmp_path), Rank(), "cpu")
    assert "\n" not in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 * 1024, "KiB"
