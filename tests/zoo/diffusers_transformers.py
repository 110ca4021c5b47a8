"""Transformers that denoise pictures, videos and sounds."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tests.zoo.diffusing import NOW, asking, beside, denoising, family, ones
from tests.zoo.hugging import wave

KIND = "diffusion transformer"
TWO_HEADS: Mapping[str, object] = {"num_attention_heads": 2, "in_channels": 4, "out_channels": 4}

SD3 = {
    "sample_size": 8,
    "patch_size": 1,
    "in_channels": 4,
    "out_channels": 4,
    "num_layers": 2,
    "attention_head_dim": 8,
    "num_attention_heads": 4,
    "joint_attention_dim": 32,
    "caption_projection_dim": 32,
    "pooled_projection_dim": 64,
}
FLUX = {
    "in_channels": 4,
    "num_layers": 1,
    "num_single_layers": 1,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 32,
    "pooled_projection_dim": 32,
    "axes_dims_rope": [4, 4, 8],
}
DIT = {
    **TWO_HEADS,
    "out_channels": 8,
    "activation_fn": "gelu-approximate",
    "attention_bias": True,
    "num_layers": 2,
    "patch_size": 2,
    "sample_size": 8,
    "num_embeds_ada_norm": 8,
}
WAN = {
    **TWO_HEADS,
    "attention_head_dim": 12,
    "text_dim": 16,
    "freq_dim": 32,
    "ffn_dim": 32,
    "num_layers": 2,
    "rope_max_seq_len": 32,
}
COSMOS = {
    **TWO_HEADS,
    "attention_head_dim": 12,
    "num_layers": 2,
    "mlp_ratio": 2,
    "text_embed_dim": 16,
    "adaln_lora_dim": 4,
    "max_size": (4, 32, 32),
    "concat_padding_mask": False,
}

PLACES = {"txt_ids": torch.zeros(7, 3), "img_ids": torch.arange(48.0).view(16, 3)}
FLUX_ASKED = denoising(1, 16, 4, words=(7, 32), pooled_projections=wave(1, 32), **PLACES)
SD3_ASKED = denoising(1, 4, 8, 8, words=(7, 32), pooled_projections=wave(1, 64))
WAN_ASKED = denoising(1, 4, 2, 8, 8, words=(12, 16))
COSMOS_ASKED = beside(denoising(1, 4, 1, 16, 16, words=(12, 16), attention_mask=torch.ones(1, 12)), fps=30)

FAMILIES = [
    family(KIND, "SD3Transformer2DModel", SD3, SD3_ASKED),
    family(KIND, "SD3Transformer2DModel", SD3, SD3_ASKED, note="fp16 stored", stored="float16"),
    family(KIND, "FluxTransformer2DModel", FLUX, FLUX_ASKED),
    family(
        KIND, "FluxTransformer2DModel", FLUX, FLUX_ASKED, note="bf16 stored, sharded", stored="bfloat16", shards="20KB"
    ),
    family(
        KIND,
        "FluxTransformer2DModel",
        {**FLUX, "guidance_embeds": True},
        denoising(1, 16, 4, words=(7, 32), pooled_projections=wave(1, 32), guidance=torch.ones(1), **PLACES),
        note="with guidance",
    ),
    family(
        KIND,
        "Flux2Transformer2DModel",
        {
            "in_channels": 4,
            "num_layers": 1,
            "num_single_layers": 1,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 32,
            "timestep_guidance_channels": 16,
            "axes_dims_rope": [4, 4, 4, 4],
        },
        denoising(
            1,
            16,
            4,
            words=(7, 32),
            guidance=torch.ones(1),
            txt_ids=torch.zeros(7, 4),
            img_ids=torch.arange(64.0).view(16, 4),
        ),
    ),
    family(
        KIND,
        "ChromaTransformer2DModel",
        {
            **{key: value for key, value in FLUX.items() if key != "pooled_projection_dim"},
            "approximator_num_channels": 8,
            "approximator_hidden_dim": 16,
            "approximator_layers": 1,
        },
        denoising(1, 16, 4, words=(7, 32), **PLACES),
    ),
    family(
        KIND,
        "PixArtTransformer2DModel",
        {
            **DIT,
            "attention_head_dim": 4,
            "cross_attention_dim": 8,
            "norm_type": "ada_norm_single",
            "norm_elementwise_affine": False,
            "use_additional_conditions": False,
        },
        beside(denoising(1, 4, 8, 8, words=(7, 8)), added_cond_kwargs={"aspect_ratio": None, "resolution": None}),
        quick=True,
    ),
    family(
        KIND,
        "DiTTransformer2DModel",
        {**DIT, "attention_head_dim": 4, "norm_type": "ada_norm_zero"},
        denoising(1, 4, 8, 8, class_labels=torch.tensor([3])),
    ),
    family(
        KIND,
        "DiTTransformer2DModel",
        {**DIT, "attention_head_dim": 4, "norm_type": "ada_norm_zero"},
        denoising(1, 4, 8, 8, class_labels=torch.tensor([3])),
        note="bf16 asked for",
        asked="bfloat16",
    ),
    family(KIND, "WanTransformer3DModel", WAN, WAN_ASKED),
    family(
        KIND, "WanTransformer3DModel", WAN, WAN_ASKED, note="bf16 stored, fp32 islands", stored="bfloat16", quick=True
    ),
    family(KIND, "WanTransformer3DModel", WAN, WAN_ASKED, note="bf16 asked for, fp32 islands", asked="bfloat16"),
    family(
        KIND,
        "CogVideoXTransformer3DModel",
        {
            **TWO_HEADS,
            "attention_head_dim": 8,
            "time_embed_dim": 4,
            "text_embed_dim": 8,
            "num_layers": 1,
            "sample_width": 8,
            "sample_height": 8,
            "sample_frames": 8,
            "max_text_seq_length": 8,
        },
        denoising(1, 2, 4, 8, 8, words=(8, 8)),
    ),
    family(
        KIND,
        "HunyuanVideoTransformer3DModel",
        {
            **TWO_HEADS,
            "attention_head_dim": 10,
            "num_layers": 1,
            "num_single_layers": 1,
            "num_refiner_layers": 1,
            "patch_size": 1,
            "text_embed_dim": 16,
            "pooled_projection_dim": 8,
            "rope_axes_dim": (2, 4, 4),
        },
        denoising(
            1,
            4,
            1,
            4,
            4,
            words=(12, 16),
            encoder_attention_mask=ones(1, 12),
            pooled_projections=wave(1, 8),
            guidance=torch.ones(1),
        ),
    ),
    family(
        KIND,
        "HunyuanDiT2DModel",
        {
            "sample_size": 16,
            "patch_size": 2,
            "in_channels": 4,
            "num_layers": 2,
            "attention_head_dim": 8,
            "num_attention_heads": 3,
            "cross_attention_dim": 32,
            "cross_attention_dim_t5": 32,
            "pooled_projection_dim": 4,
            "hidden_size": 24,
            "text_len": 4,
            "text_len_t5": 4,
        },
        beside(
            denoising(
                1,
                4,
                8,
                8,
                words=(4, 32),
                text_embedding_mask=ones(1, 4),
                encoder_hidden_states_t5=wave(1, 4, 32),
                text_embedding_mask_t5=ones(1, 4),
                image_meta_size=torch.tensor([[8.0, 8.0, 8.0, 8.0, 0.0, 0.0]]),
                style=torch.tensor([0]),
                timestep=NOW.float(),
            ),
            image_rotary_emb=[wave(16, 8), wave(16, 8)],
        ),
    ),
    family(
        KIND,
        "LTXVideoTransformer3DModel",
        {
            "in_channels": 8,
            "out_channels": 8,
            "num_attention_heads": 4,
            "attention_head_dim": 8,
            "cross_attention_dim": 32,
            "num_layers": 1,
            "caption_channels": 16,
        },
        beside(denoising(1, 32, 8, words=(7, 16), encoder_attention_mask=ones(1, 7)), num_frames=2, height=4, width=4),
    ),
    family(
        KIND,
        "SanaTransformer2DModel",
        {
            **TWO_HEADS,
            "patch_size": 1,
            "num_layers": 1,
            "attention_head_dim": 4,
            "num_cross_attention_heads": 2,
            "cross_attention_head_dim": 4,
            "cross_attention_dim": 8,
            "caption_channels": 8,
            "sample_size": 8,
        },
        denoising(1, 4, 8, 8, words=(7, 8)),
    ),
    family(
        KIND,
        "Lumina2Transformer2DModel",
        {
            "sample_size": 16,
            "in_channels": 4,
            "hidden_size": 24,
            "num_layers": 1,
            "num_refiner_layers": 1,
            "num_attention_heads": 3,
            "num_kv_heads": 1,
            "multiple_of": 2,
            "axes_dim_rope": (4, 2, 2),
            "axes_lens": (128, 128, 128),
            "cap_feat_dim": 8,
        },
        denoising(1, 4, 8, 8, words=(7, 8), encoder_attention_mask=torch.ones(1, 7, dtype=torch.bool)),
    ),
    family(
        KIND,
        "AuraFlowTransformer2DModel",
        {
            "sample_size": 16,
            "in_channels": 4,
            "out_channels": 4,
            "num_mmdit_layers": 1,
            "num_single_dit_layers": 1,
            "attention_head_dim": 8,
            "num_attention_heads": 4,
            "caption_projection_dim": 32,
            "joint_attention_dim": 32,
            "pos_embed_max_size": 64,
        },
        denoising(1, 4, 8, 8, words=(7, 32)),
    ),
    family(KIND, "CosmosTransformer3DModel", COSMOS, COSMOS_ASKED),
    family(KIND, "CosmosTransformer3DModel", COSMOS, COSMOS_ASKED, note="bf16 stored, fp32 islands", stored="bfloat16"),
    family(
        KIND,
        "MochiTransformer3DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "num_layers": 2,
            "pooled_projection_dim": 16,
            "in_channels": 4,
            "text_embed_dim": 16,
            "time_embed_dim": 4,
            "max_sequence_length": 16,
        },
        denoising(1, 4, 2, 8, 8, words=(7, 16), encoder_attention_mask=torch.ones(1, 7, dtype=torch.bool)),
    ),
    family(
        KIND,
        "QwenImageTransformer2DModel",
        {
            "in_channels": 16,
            "out_channels": 4,
            "num_layers": 1,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 16,
            "axes_dims_rope": (8, 4, 4),
        },
        beside(denoising(1, 16, 16, words=(7, 16), encoder_hidden_states_mask=ones(1, 7)), img_shapes=[[(1, 4, 4)]]),
    ),
    family(
        KIND,
        "StableAudioDiTModel",
        {
            "sample_size": 4,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 1,
            "attention_head_dim": 4,
            "num_attention_heads": 4,
            "num_key_value_attention_heads": 2,
            "cross_attention_dim": 16,
            "time_proj_dim": 8,
            "global_states_input_dim": 8,
            "cross_attention_input_dim": 16,
        },
        beside(
            denoising(1, 4, 8, words=(7, 16), global_hidden_states=wave(1, 1, 8)),
            rotary_embedding=(wave(9, 2), wave(9, 2)),
        ),
    ),
    family(
        KIND,
        "PriorTransformer",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 4,
            "num_layers": 2,
            "embedding_dim": 8,
            "num_embeddings": 7,
            "additional_embeddings": 4,
        },
        asking(hidden_states=wave(1, 8), timestep=NOW, proj_embedding=wave(1, 8), encoder_hidden_states=wave(1, 7, 8)),
    ),
]
