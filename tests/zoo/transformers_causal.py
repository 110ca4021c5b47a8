"""Decoders of text: rotary embeddings of every kind, learned and computed positions, ties, dtypes."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file

from tests.zoo.hugging import BF16, FP16, FP32, TEXT, Config, asking, family, ids, tokens

KIND = "causal"
LLAMA: Config = {**TEXT, "intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 64}
SPECIAL: Config = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GPT2: Config = {**SPECIAL, "vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
SLIDING = ["sliding_attention", "full_attention"]
TIED: Config = {"tie_word_embeddings": True}
LONG = asking(input_ids=ids(100))


def rope(kind: str, **values: object) -> Config:
    """Llama with another rotary embedding."""
    return {**LLAMA, "rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **values}}


def wide_norms(directory: Path) -> None:
    """Stores the norms in another dtype than the rest."""
    file = directory / "model.safetensors"
    tensors = {name: each.float() if "norm" in name else each for name, each in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})


LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=16)
LONGROPE: Config = {
    **LLAMA,
    **SPECIAL,
    "original_max_position_embeddings": 32,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.5, 2.0, 3.0, 4.0],
    },
}

FAMILIES = [
    family(KIND, "LlamaForCausalLM", "LlamaConfig", LLAMA, tokens),
    family(KIND, "LlamaForCausalLM", "LlamaConfig", {**LLAMA, **TIED}, tokens, note="tied", dtype=BF16),
    family(KIND, "LlamaForCausalLM", "LlamaConfig", {**LLAMA, **TIED}, tokens, note="tied", dtype=FP16),
    family(KIND, "LlamaForCausalLM", "LlamaConfig", LLAMA, tokens, note="asked for in bf16", asked=BF16),
    family(KIND, "LlamaForCausalLM", "LlamaConfig", LLAMA, tokens, dtype=BF16, note="asked for in fp32", asked=FP32),
    family(KIND, "LlamaForCausalLM", "LlamaConfig", LLAMA, tokens, note="in several files", shard="20KB"),
    family(KIND, "LlamaForCausalLM", "LlamaConfig", LLAMA, tokens, note="norms in fp32", dtype=BF16, after=wide_norms),
    family(KIND, "LlamaForCausalLM", "LlamaConfig", LLAMA3, tokens, note="llama3 rope"),
    family(KIND, "LlamaForCausalLM", "LlamaConfig", rope("linear", factor=2.0), tokens, note="linear rope"),
    family(KIND, "LlamaForCausalLM", "LlamaConfig", YARN, tokens, note="yarn"),
    family(
        KIND,
        "LlamaForCausalLM",
        "LlamaConfig",
        rope("dynamic", factor=2.0),
        tokens,
        note="dynamic ntk",
        warm=LONG,
        quick=True,
    ),
    family(KIND, "LlamaForCausalLM", "LlamaConfig", rope("dynamic", factor=2.0), LONG, note="dynamic ntk, long"),
    family(KIND, "Phi3ForCausalLM", "Phi3Config", LONGROPE, tokens, note="longrope", warm=LONG),
    family(KIND, "Phi3ForCausalLM", "Phi3Config", LONGROPE, LONG, note="longrope, long", dtype=BF16),
    family(KIND, "PhiForCausalLM", "PhiConfig", LLAMA, tokens),
    family(KIND, "MistralForCausalLM", "MistralConfig", {**LLAMA, "sliding_window": 4}, tokens),
    family(KIND, "Qwen2ForCausalLM", "Qwen2Config", {**LLAMA, **TIED}, tokens, note="tied", dtype=BF16),
    family(KIND, "Qwen3ForCausalLM", "Qwen3Config", {**LLAMA, "head_dim": 8, **TIED}, tokens, note="tied"),
    family(KIND, "GemmaForCausalLM", "GemmaConfig", {**LLAMA, "head_dim": 8}, tokens, dtype=FP16),
    family(KIND, "Gemma2ForCausalLM", "Gemma2Config", {**LLAMA, "head_dim": 8}, tokens, dtype=BF16),
    family(KIND, "Gemma3ForCausalLM", "Gemma3TextConfig", {**LLAMA, "head_dim": 8}, tokens, quick=True),
    family(KIND, "Gemma3ForCausalLM", "Gemma3TextConfig", {**LLAMA, "head_dim": 8}, tokens, dtype=BF16),
    family(
        KIND,
        "Gemma3nForCausalLM",
        "Gemma3nTextConfig",
        {
            **LLAMA,
            "head_dim": 8,
            "num_hidden_layers": 5,
            "num_kv_shared_layers": 1,
            "layer_types": [*SLIDING, *SLIDING, "full_attention"],
            "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0, 0.0],
            "intermediate_size": [48] * 5,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 96,
            "laurel_rank": 4,
        },
        tokens,
    ),
    family(KIND, "CohereForCausalLM", "CohereConfig", LLAMA, tokens),
    family(KIND, "GlmForCausalLM", "GlmConfig", {**LLAMA, **SPECIAL, "head_dim": 8}, tokens),
    family(KIND, "Olmo2ForCausalLM", "Olmo2Config", LLAMA, tokens),
    family(KIND, "StableLmForCausalLM", "StableLmConfig", LLAMA, tokens),
    family(KIND, "GPTNeoXForCausalLM", "GPTNeoXConfig", {**TEXT, "intermediate_size": 48}, tokens),
    family(
        KIND,
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        {**TEXT, "intermediate_size": 48},
        tokens,
        dtype=FP16,
    ),
    family(KIND, "GPTJForCausalLM", "GPTJConfig", {**GPT2, "rotary_dim": 4}, tokens, quick=True),
    family(KIND, "CodeGenForCausalLM", "CodeGenConfig", {**GPT2, "rotary_dim": 4}, tokens),
    family(
        KIND,
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {
            **SPECIAL,
            "vocab_size": 96,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "max_position_embeddings": 32,
        },
        tokens,
    ),
    family(KIND, "GPT2LMHeadModel", "GPT2Config", GPT2, tokens, note="tied"),
    family(KIND, "GPTBigCodeForCausalLM", "GPTBigCodeConfig", GPT2, tokens),
    family(
        KIND,
        "OPTForCausalLM",
        "OPTConfig",
        {**TEXT, "ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 32},
        tokens,
        note="tied",
        dtype=FP16,
    ),
    family(
        KIND,
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        tokens,
    ),
    family(KIND, "MptForCausalLM", "MptConfig", {"vocab_size": 96, "d_model": 32, "n_layers": 2, "n_heads": 4}, tokens),
    family(KIND, "FalconForCausalLM", "FalconConfig", {**TEXT, **SPECIAL}, tokens),
    family(
        KIND,
        "XGLMForCausalLM",
        "XGLMConfig",
        {
            "vocab_size": 96,
            "d_model": 32,
            "num_layers": 2,
            "attention_heads": 4,
            "ffn_dim": 48,
            "max_position_embeddings": 32,
        },
        tokens,
    ),
    family(KIND, "CTRLLMHeadModel", "CTRLConfig", {**GPT2, "dff": 48}, tokens),
    family(KIND, "BioGptForCausalLM", "BioGptConfig", {**TEXT, "intermediate_size": 48}, tokens),
    family(
        KIND,
        "XLNetLMHeadModel",
        "XLNetConfig",
        {"vocab_size": 96, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
        tokens,
        note="tied",
    ),
]
