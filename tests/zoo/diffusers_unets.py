"""UNets, and what steers them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from tests.zoo.diffusing import NOW, Question, asking, beside, family, sample
from tests.zoo.family import Inputs
from tests.zoo.hugging import wave

KIND = "unet"
LATENT: Mapping[str, object] = {
    "sample_size": 8,
    "block_out_channels": (8, 16),
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "attention_head_dim": 2,
}
TEXT: Mapping[str, object] = {
    **LATENT,
    "cross_attention_dim": 16,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}
SDXL: Mapping[str, object] = {
    **TEXT,
    "attention_head_dim": (2, 4),
    "transformer_layers_per_block": (1, 2),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 64,
}
PIXELS: Mapping[str, object] = {
    **LATENT,
    "in_channels": 3,
    "out_channels": 3,
    "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
    "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
}
STEERING: Mapping[str, object] = {
    **{key: value for key, value in TEXT.items() if key not in ("sample_size", "up_block_types")},
    "conditioning_embedding_out_channels": (8, 16),
}

WORDS = {"timestep": NOW, "encoder_hidden_states": wave(1, 7, 16)}


def with_size(question: Question) -> Question:
    """What SDXL is asked besides."""

    def inputs(module: nn.Module) -> Inputs:
        dtype = next(module.parameters()).dtype
        added = {"text_embeds": wave(1, 16).to(dtype), "time_ids": torch.tensor([[8, 8, 0, 0, 8, 8]])}
        return {**question(module), "added_cond_kwargs": added}

    return inputs


LATENTS = sample(1, 4, 8, 8, **WORDS)
VIDEO_BLOCKS = ("CrossAttnDownBlock3D", "DownBlock3D"), ("UpBlock3D", "CrossAttnUpBlock3D")

FAMILIES = [
    family(KIND, "UNet2DConditionModel", TEXT, LATENTS, note="as in SD 1.5"),
    family(KIND, "UNet2DConditionModel", TEXT, LATENTS, note="as in SD 1.5, bf16 asked for", asked="bfloat16"),
    family(KIND, "UNet2DConditionModel", SDXL, with_size(LATENTS), note="as in SDXL"),
    family(KIND, "UNet2DConditionModel", SDXL, with_size(LATENTS), note="as in SDXL, fp16 stored", stored="float16"),
    family(KIND, "UNet2DModel", PIXELS, sample(1, 3, 8, 8, timestep=NOW)),
    family(
        KIND,
        "UNet2DModel",
        {
            **PIXELS,
            "time_embedding_type": "fourier",
            "down_block_types": ("SkipDownBlock2D", "AttnSkipDownBlock2D"),
            "up_block_types": ("AttnSkipUpBlock2D", "SkipUpBlock2D"),
            "norm_num_groups": None,
            "block_out_channels": (32, 32),
        },
        sample(1, 3, 8, 8, timestep=NOW),
        note="fourier",
    ),
    family(
        KIND,
        "UNet1DModel",
        {
            "block_out_channels": (8, 8, 16, 16),
            "in_channels": 6,
            "out_channels": 6,
            "time_embedding_type": "positional",
            "use_timestep_embedding": True,
            "flip_sin_to_cos": False,
            "freq_shift": 1.0,
            "out_block_type": "OutConv1DBlock",
            "mid_block_type": "MidResTemporalBlock1D",
            "down_block_types": ("DownResnetBlock1D",) * 4,
            "up_block_types": ("UpResnetBlock1D",) * 3,
            "act_fn": "swish",
        },
        sample(1, 6, 16, timestep=NOW),
    ),
    family(
        KIND,
        "UNet3DConditionModel",
        {**TEXT, "down_block_types": VIDEO_BLOCKS[0], "up_block_types": VIDEO_BLOCKS[1]},
        sample(1, 4, 2, 8, 8, **WORDS),
    ),
    family(
        KIND,
        "UNetSpatioTemporalConditionModel",
        {
            "sample_size": 8,
            "block_out_channels": (32, 64),
            "layers_per_block": 1,
            "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
            "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
            "cross_attention_dim": 16,
            "num_attention_heads": 8,
            "projection_class_embeddings_input_dim": 24,
            "addition_time_embed_dim": 8,
        },
        sample(1, 2, 8, 8, 8, timestep=NOW, encoder_hidden_states=wave(1, 1, 16), added_time_ids=wave(1, 3)),
    ),
    family(
        KIND,
        "ControlNetModel",
        STEERING,
        beside(sample(1, 4, 8, 8, controlnet_cond=wave(1, 3, 16, 16), **WORDS), conditioning_scale=0.5),
    ),
    family(
        KIND,
        "ControlNetModel",
        STEERING,
        sample(1, 4, 8, 8, controlnet_cond=wave(1, 3, 16, 16), **WORDS),
        note="bf16 stored",
        stored="bfloat16",
    ),
    family(
        KIND,
        "T2IAdapter",
        {"in_channels": 3, "channels": [8, 16], "num_res_blocks": 1, "downscale_factor": 8},
        asking(x=wave(1, 3, 32, 32)),
    ),
]
