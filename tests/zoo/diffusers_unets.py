"""UNets, and what steers them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tests.zoo.diffusing import NOW, family, sample
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
WORDS = wave(1, 7, 16)
SDXL: Mapping[str, object] = {
    **TEXT,
    "transformer_layers_per_block": (1, 2),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 8 * 6 + 16,
    "attention_head_dim": (2, 4),
}

ADDED = {"text_embeds": wave(1, 16), "time_ids": torch.tensor([[8, 8, 0, 0, 8, 8]])}

FAMILIES = [
    family(KIND, "UNet2DConditionModel", TEXT, sample(1, 4, 8, 8, timestep=NOW, encoder_hidden_states=WORDS), note="as in SD 1.5", quick=True),
]
