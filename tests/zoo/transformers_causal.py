"""Decoders of text: rotary embeddings of every kind, learned and computed positions, ties, dtypes."""

from __future__ import annotations

from tests.zoo.hugging import TEXT, Config, family, tokens

KIND = "causal"
LLAMA: Config = {**TEXT, "intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 64}
GPT2: Config = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "bos_token_id": 1, "eos_token_id": 2}


def rope(kind: str, **values: object) -> Config:
    return {**LLAMA, "rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **values}}


FAMILIES = [
    family(KIND, "LlamaForCausalLM", "LlamaConfig", LLAMA, tokens, quick=True),
    family(KIND, "GPT2LMHeadModel", "GPT2Config", GPT2, tokens, note="tied", quick=True),
]
