"""What turns pictures, videos and sounds into latents and back."""

from __future__ import annotations

from collections.abc import Mapping

from tests.zoo.diffusing import family, sample

KIND = "autoencoder"
SMALL: Mapping[str, object] = {
    "block_out_channels": (8, 16),
    "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
    "up_block_types": ("UpDecoderBlock2D", "UpDecoderBlock2D"),
    "latent_channels": 4,
    "norm_num_groups": 4,
}
FOUR: Mapping[str, object] = {
    "block_out_channels": (8, 8, 8, 8),
    "latent_channels": 4,
    "layers_per_block": 1,
    "norm_num_groups": 4,
}

FAMILIES = [
    family(KIND, "AutoencoderKL", SMALL, sample(1, 3, 16, 16), quick=True),
    family(KIND, "AutoencoderKL", SMALL, sample(1, 3, 16, 16), note="fp16 asked for", asked="float16"),
    family(
        KIND,
        "AutoencoderKL",
        SMALL,
        sample(1, 3, 16, 16),
        note="bf16 stored, sharded",
        stored="bfloat16",
        shards="20KB",
    ),
    family(
        KIND,
        "AutoencoderTiny",
        {
            "encoder_block_out_channels": (8, 8),
            "decoder_block_out_channels": (8, 8),
            "num_encoder_blocks": (1, 1),
            "num_decoder_blocks": (1, 1),
        },
        sample(1, 3, 16, 16),
    ),
    family(
        KIND,
        "AsymmetricAutoencoderKL",
        {
            "down_block_types": ("DownEncoderBlock2D",),
            "down_block_out_channels": (8,),
            "layers_per_down_block": 1,
            "up_block_types": ("UpDecoderBlock2D",),
            "up_block_out_channels": (8,),
            "layers_per_up_block": 1,
            "norm_num_groups": 4,
            "latent_channels": 4,
        },
        sample(1, 3, 16, 16),
    ),
    family(
        KIND,
        "AutoencoderKLTemporalDecoder",
        {
            "block_out_channels": (32, 32),
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "latent_channels": 4,
            "layers_per_block": 1,
        },
        sample(2, 3, 16, 16),
    ),
    family(
        KIND,
        "AutoencoderKLWan",
        {
            "base_dim": 3,
            "z_dim": 16,
            "dim_mult": [1, 1, 1, 1],
            "num_res_blocks": 1,
            "temperal_downsample": [False, True, True],
        },
        sample(1, 3, 5, 16, 16),
        quick=True,
    ),
    family(
        KIND,
        "AutoencoderKLCogVideoX",
        {
            **FOUR,
            "down_block_types": ("CogVideoXDownBlock3D",) * 4,
            "up_block_types": ("CogVideoXUpBlock3D",) * 4,
            "temporal_compression_ratio": 4,
        },
        sample(1, 3, 5, 16, 16),
    ),
    family(
        KIND,
        "AutoencoderKLHunyuanVideo",
        {
            **FOUR,
            "down_block_types": ("HunyuanVideoDownBlock3D",) * 4,
            "up_block_types": ("HunyuanVideoUpBlock3D",) * 4,
            "spatial_compression_ratio": 8,
            "temporal_compression_ratio": 4,
            "mid_block_add_attention": True,
        },
        sample(1, 3, 5, 16, 16),
    ),
    family(
        KIND,
        "AutoencoderKLLTXVideo",
        {
            "latent_channels": 8,
            "block_out_channels": (8, 8, 8, 8),
            "decoder_block_out_channels": (8, 8, 8, 8),
            "layers_per_block": (1, 1, 1, 1, 1),
            "decoder_layers_per_block": (1, 1, 1, 1, 1),
            "spatio_temporal_scaling": (True, True, False, False),
            "decoder_spatio_temporal_scaling": (True, True, False, False),
            "patch_size": 1,
            "patch_size_t": 1,
            "encoder_causal": True,
            "decoder_causal": False,
        },
        sample(1, 3, 9, 16, 16),
    ),
    family(
        KIND,
        "AutoencoderKLMochi",
        {
            "latent_channels": 4,
            "encoder_block_out_channels": (32, 32, 32, 32),
            "decoder_block_out_channels": (32, 32, 32, 32),
            "layers_per_block": (1, 1, 1, 1, 1),
        },
        sample(1, 3, 7, 16, 16),
    ),
    family(
        KIND,
        "AutoencoderKLCosmos",
        {
            "encoder_block_out_channels": (8, 8, 8, 8),
            "decode_block_out_channels": (8, 8, 8, 8),
            "attention_resolutions": (8,),
            "resolution": 64,
            "num_layers": 2,
            "patch_size": 4,
            "patch_type": "haar",
            "scaling_factor": 1.0,
            "spatial_compression_ratio": 4,
            "temporal_compression_ratio": 4,
            "latent_channels": 4,
        },
        sample(1, 3, 9, 32, 32),
    ),
    family(
        KIND,
        "AutoencoderDC",
        {
            "latent_channels": 4,
            "attention_head_dim": 2,
            "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "encoder_block_out_channels": (8, 8),
            "decoder_block_out_channels": (8, 8),
            "encoder_qkv_multiscales": ((), (5,)),
            "decoder_qkv_multiscales": ((), (5,)),
            "encoder_layers_per_block": (1, 1),
            "decoder_layers_per_block": [1, 1],
            "downsample_block_type": "conv",
            "upsample_block_type": "interpolate",
            "decoder_norm_types": "rms_norm",
            "decoder_act_fns": "silu",
        },
        sample(1, 3, 32, 32),
    ),
    family(
        KIND,
        "AutoencoderOobleck",
        {
            "encoder_hidden_size": 12,
            "decoder_channels": 12,
            "decoder_input_channels": 6,
            "audio_channels": 2,
            "downsampling_ratios": [2, 4],
            "channel_multiples": [1, 2],
        },
        sample(1, 2, 24),
    ),
    family(
        KIND,
        "VQModel",
        {
            "block_out_channels": (8, 16),
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "latent_channels": 3,
            "norm_num_groups": 4,
            "num_vq_embeddings": 16,
        },
        sample(1, 3, 16, 16),
    ),
    family(
        KIND,
        "AutoencoderKLQwenImage",
        {
            "base_dim": 8,
            "z_dim": 4,
            "dim_mult": [1, 1, 1, 1],
            "num_res_blocks": 1,
            "temperal_downsample": [False, True, True],
            "latents_mean": [0.0] * 4,
            "latents_std": [1.0] * 4,
        },
        sample(1, 3, 1, 16, 16),
    ),
]
