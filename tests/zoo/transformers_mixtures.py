"""Mixtures of experts, whose weights are merged on loading, and models with a recurrent state."""

from __future__ import annotations

from tests.zoo.hugging import BF16, FP16, TEXT, Config, family, tokens

MOE, STATE = "moe", "state space"
LLAMA: Config = {**TEXT, "intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 64}
QWEN: Config = {**LLAMA, "head_dim": 8, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
DEEPSEEK: Config = {
    **LLAMA,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}
OSS: Config = {**LLAMA, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2}
MAMBA: Config = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
MAMBA2: Config = {**MAMBA, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8}
RWKV: Config = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32}
JAMBA: Config = {
    **LLAMA,
    "mamba_d_state": 8,
    "mamba_dt_rank": 4,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "num_experts": 4,
    "use_mamba_kernels": False,
}
NEXT: Config = {
    **QWEN,
    "shared_expert_intermediate_size": 16,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}

FAMILIES = [
    family(MOE, "MixtralForCausalLM", "MixtralConfig", {**LLAMA, "num_local_experts": 4}, tokens),
    family(
        MOE, "MixtralForCausalLM", "MixtralConfig", {**LLAMA, "num_local_experts": 4}, tokens, dtype=BF16, quick=True
    ),
    family(MOE, "Qwen2MoeForCausalLM", "Qwen2MoeConfig", {**QWEN, "shared_expert_intermediate_size": 16}, tokens),
    family(MOE, "Qwen3MoeForCausalLM", "Qwen3MoeConfig", QWEN, tokens),
    family(MOE, "Qwen3NextForCausalLM", "Qwen3NextConfig", NEXT, tokens),
    family(MOE, "Qwen3NextForCausalLM", "Qwen3NextConfig", NEXT, tokens, dtype=BF16),
    family(
        MOE, "DeepseekV2ForCausalLM", "DeepseekV2Config", {**DEEPSEEK, "topk_method": "group_limited_greedy"}, tokens
    ),
    family(
        MOE,
        "MixtralForCausalLM",
        "MixtralConfig",
        {**LLAMA, "num_local_experts": 4},
        tokens,
        note="asked for in bf16",
        asked=BF16,
    ),
    family(MOE, "DeepseekV3ForCausalLM", "DeepseekV3Config", DEEPSEEK, tokens),
    family(MOE, "DeepseekV3ForCausalLM", "DeepseekV3Config", DEEPSEEK, tokens, note="asked for in fp16", asked=FP16),
    family(MOE, "DeepseekV3ForCausalLM", "DeepseekV3Config", DEEPSEEK, tokens, dtype=BF16, quick=True),
    family(MOE, "GptOssForCausalLM", "GptOssConfig", OSS, tokens),
    family(MOE, "GptOssForCausalLM", "GptOssConfig", OSS, tokens, dtype=FP16, quick=True),
    family(MOE, "OlmoeForCausalLM", "OlmoeConfig", {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2}, tokens),
    family(MOE, "Glm4MoeForCausalLM", "Glm4MoeConfig", {**DEEPSEEK, "head_dim": 8}, tokens),
    family(
        MOE,
        "GraniteMoeForCausalLM",
        "GraniteMoeConfig",
        {**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2},
        tokens,
    ),
    family(MOE, "PhimoeForCausalLM", "PhimoeConfig", {**LLAMA, "num_local_experts": 4}, tokens),
    family(STATE, "MambaForCausalLM", "MambaConfig", MAMBA, tokens, note="tied"),
    family(STATE, "MambaForCausalLM", "MambaConfig", MAMBA, tokens, note="tied", dtype=BF16),
    family(STATE, "Mamba2ForCausalLM", "Mamba2Config", MAMBA2, tokens),
    family(STATE, "Mamba2ForCausalLM", "Mamba2Config", MAMBA2, tokens, dtype=BF16),
    family(STATE, "FalconMambaForCausalLM", "FalconMambaConfig", MAMBA, tokens, quick=True),
    family(STATE, "JambaForCausalLM", "JambaConfig", JAMBA, tokens),
    family(STATE, "JambaForCausalLM", "JambaConfig", JAMBA, tokens, dtype=BF16),
    family(
        STATE,
        "BambaForCausalLM",
        "BambaConfig",
        {
            **LLAMA,
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_d_state": 8,
            "mamba_chunk_size": 8,
            "attn_layer_indices": [1],
        },
        tokens,
    ),
    family(
        STATE,
        "Zamba2ForCausalLM",
        "Zamba2Config",
        {
            **LLAMA,
            "mamba_d_state": 8,
            "mamba_headdim": 8,
            "n_mamba_heads": 8,
            "chunk_size": 8,
            "num_hidden_layers": 3,
            "layers_block_type": ["mamba", "hybrid", "hybrid"],
            "use_mem_eff_path": False,
            "num_mem_blocks": 1,
            "adapter_rank": 4,
            "use_shared_attention_adapter": False,
        },
        tokens,
    ),
    family(
        STATE,
        "RecurrentGemmaForCausalLM",
        "RecurrentGemmaConfig",
        {
            **TEXT,
            "intermediate_size": 48,
            "lru_width": 32,
            "attention_window_size": 8,
            "num_key_value_heads": 1,
            "block_types": ["recurrent", "attention"],
        },
        tokens,
    ),
    family(STATE, "RwkvForCausalLM", "RwkvConfig", {**RWKV, "rescale_every": 0}, tokens),
    family(
        STATE,
        "RwkvForCausalLM",
        "RwkvConfig",
        {**RWKV, "rescale_every": 1},
        tokens,
        note="halved while it serves",
        lends=False,
        quick=True,
    ),
    family(STATE, "RwkvForCausalLM", "RwkvConfig", RWKV, tokens, dtype=FP16),
]
