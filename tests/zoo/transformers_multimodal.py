"""Models of more than one sense, and of none of them (time series): buffers in every part, rotary of three kinds."""

from __future__ import annotations

import torch

from tests.zoo.hugging import BF16, BLOCKS, FP16, TEXT, Config, asking, family, ids, wave

KIND, OTHER = "multimodal", "other"
VISION: Config = {**BLOCKS, "image_size": 16, "patch_size": 8}
WORDS: Config = {
    **TEXT,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
LLAMA: Config = {**TEXT, "intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 64}
PIXELS = wave(1, 3, 16, 16)
SEEN_AND_READ = asking(input_ids=ids(), pixel_values=PIXELS)
MROPE: Config = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}}
PLACES: Config = {"image_token_id": 90, "video_token_id": 91, "vision_start_token_id": 92, "vision_end_token_id": 93}
QWEN_EYE: Config = {"depth": 1, "embed_dim": 32, "num_heads": 2, "hidden_size": 32, "patch_size": 4}


def with_image(token: int, count: int) -> torch.Tensor:
    """Token numbers with ``count`` places for an image."""
    return torch.cat([ids(3), torch.full((1, count), token), ids(4)], dim=1)


def qwen(token: int = 90) -> torch.Tensor:
    return torch.cat([ids(2), torch.tensor([[92]]), torch.full((1, 4), token), torch.tensor([[93]]), ids(3)], dim=1)


QWEN_SEES = asking(
    input_ids=qwen(),
    pixel_values=wave(16, 3 * 2 * 4 * 4),
    image_grid_thw=torch.tensor([[1, 4, 4]]),
    mm_token_type_ids=(qwen() == 90).int(),
)
CLIP_EYE: Config = {"class": "CLIPVisionConfig", **VISION}
CLIP_WORDS: Config = {"class": "CLIPTextConfig", **WORDS}
SIGLIP: Config = {
    "text_config": {"class": "SiglipTextConfig", **WORDS},
    "vision_config": {"class": "SiglipVisionConfig", **VISION},
}
LLAVA: Config = {
    "vision_config": CLIP_EYE,
    "text_config": {"class": "LlamaConfig", **LLAMA},
    "image_token_index": 90,
    "image_seq_length": 4,
    "vision_feature_layer": -1,
}

FAMILIES = [
    family(
        KIND,
        "CLIPModel",
        "CLIPConfig",
        {"text_config": CLIP_WORDS, "vision_config": CLIP_EYE, "projection_dim": 16},
        SEEN_AND_READ,
        quick=True,
    ),
    family(
        KIND,
        "CLIPModel",
        "CLIPConfig",
        {"text_config": CLIP_WORDS, "vision_config": CLIP_EYE, "projection_dim": 16},
        SEEN_AND_READ,
        dtype=FP16,
    ),
    family(
        KIND,
        "CLIPTextModelWithProjection",
        "CLIPTextConfig",
        {**WORDS, "projection_dim": 16},
        asking(input_ids=ids()),
        dtype=FP16,
    ),
    family(KIND, "CLIPVisionModel", "CLIPVisionConfig", VISION, asking(pixel_values=PIXELS)),
    family(
        KIND,
        "ChineseCLIPModel",
        "ChineseCLIPConfig",
        {
            "text_config": {"class": "ChineseCLIPTextConfig", **WORDS},
            "vision_config": {"class": "ChineseCLIPVisionConfig", **VISION},
            "projection_dim": 16,
        },
        SEEN_AND_READ,
    ),
    family(KIND, "SiglipModel", "SiglipConfig", SIGLIP, SEEN_AND_READ),
    family(KIND, "SiglipModel", "SiglipConfig", SIGLIP, SEEN_AND_READ, dtype=BF16),
    family(
        KIND,
        "Owlv2ForObjectDetection",
        "Owlv2Config",
        {
            "text_config": {"class": "Owlv2TextConfig", **WORDS, "max_position_embeddings": 9},
            "vision_config": {"class": "Owlv2VisionConfig", **VISION},
            "projection_dim": 32,
        },
        SEEN_AND_READ,
    ),
    family(
        KIND,
        "BlipForConditionalGeneration",
        "BlipConfig",
        {
            "text_config": {"class": "BlipTextConfig", **WORDS, "encoder_hidden_size": 32},
            "vision_config": {"class": "BlipVisionConfig", **VISION},
            "projection_dim": 16,
        },
        SEEN_AND_READ,
    ),
    family(
        KIND,
        "Blip2ForConditionalGeneration",
        "Blip2Config",
        {
            "vision_config": {"class": "Blip2VisionConfig", **VISION},
            "qformer_config": {"class": "Blip2QFormerConfig", **WORDS, "encoder_hidden_size": 32},
            "text_config": {
                "class": "OPTConfig",
                **TEXT,
                "ffn_dim": 48,
                "word_embed_proj_dim": 32,
                "max_position_embeddings": 32,
            },
            "num_query_tokens": 4,
            "image_token_index": 90,
        },
        asking(input_ids=with_image(90, 4), pixel_values=PIXELS),
    ),
    family(
        KIND,
        "LlavaForConditionalGeneration",
        "LlavaConfig",
        LLAVA,
        asking(input_ids=with_image(90, 4), pixel_values=PIXELS),
    ),
    family(
        KIND,
        "LlavaForConditionalGeneration",
        "LlavaConfig",
        LLAVA,
        asking(input_ids=with_image(90, 4), pixel_values=PIXELS),
        dtype=BF16,
    ),
    family(
        KIND,
        "PaliGemmaForConditionalGeneration",
        "PaliGemmaConfig",
        {
            "vision_config": {"class": "SiglipVisionConfig", **VISION, "projection_dim": 32},
            "text_config": {"class": "GemmaConfig", **LLAMA, "head_dim": 8, "num_image_tokens": 4},
            "image_token_index": 90,
            "projection_dim": 32,
            "hidden_size": 32,
        },
        asking(input_ids=with_image(90, 4), pixel_values=PIXELS, token_type_ids=torch.zeros(1, 11, dtype=torch.int64)),
    ),
    family(
        KIND,
        "Gemma3ForConditionalGeneration",
        "Gemma3Config",
        {
            "vision_config": {"class": "SiglipVisionConfig", **VISION, "vision_use_head": False},
            "text_config": {"class": "Gemma3TextConfig", **LLAMA, "head_dim": 8},
            "image_token_index": 90,
            "mm_tokens_per_image": 4,
        },
        asking(input_ids=with_image(90, 4), pixel_values=PIXELS, token_type_ids=(with_image(90, 4) == 90).int()),
        dtype=BF16,
    ),
    family(
        KIND,
        "Idefics3ForConditionalGeneration",
        "Idefics3Config",
        {
            "vision_config": {"class": "Idefics3VisionConfig", **VISION},
            "text_config": {"class": "LlamaConfig", **LLAMA, "pad_token_id": 0},
            "image_token_id": 90,
            "scale_factor": 2,
            "pad_token_id": 0,
        },
        asking(input_ids=with_image(90, 1), pixel_values=wave(1, 1, 3, 16, 16)),
    ),
    family(
        KIND,
        "Qwen2VLForConditionalGeneration",
        "Qwen2VLConfig",
        {**PLACES, "text_config": {**LLAMA, **MROPE}, "vision_config": QWEN_EYE},
        QWEN_SEES,
        quick=True,
    ),
    family(
        KIND,
        "Qwen2VLForConditionalGeneration",
        "Qwen2VLConfig",
        {**PLACES, "text_config": {**LLAMA, **MROPE}, "vision_config": QWEN_EYE},
        QWEN_SEES,
        dtype=BF16,
    ),
    family(
        KIND,
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen2_5_VLConfig",
        {
            **PLACES,
            "text_config": {**LLAMA, **MROPE},
            "vision_config": {
                "depth": 2,
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_heads": 2,
                "out_hidden_size": 32,
                "patch_size": 4,
                "window_size": 16,
                "fullatt_block_indexes": [1],
            },
        },
        QWEN_SEES,
    ),
    family(
        KIND,
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLConfig",
        {
            **PLACES,
            "text_config": {**LLAMA, **MROPE, "head_dim": 8},
            "vision_config": {
                "depth": 2,
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_heads": 2,
                "out_hidden_size": 32,
                "patch_size": 4,
                "deepstack_visual_indexes": [0],
                "num_position_embeddings": 16,
            },
        },
        QWEN_SEES,
    ),
    family(
        KIND,
        "MllamaForConditionalGeneration",
        "MllamaConfig",
        {
            "image_token_index": 90,
            "text_config": {
                "class": "MllamaTextConfig",
                **LLAMA,
                "cross_attention_layers": [1],
                "pad_token_id": 0,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            },
            "vision_config": {
                "class": "MllamaVisionConfig",
                "hidden_size": 32,
                "attention_heads": 4,
                "num_hidden_layers": 2,
                "num_global_layers": 1,
                "intermediate_size": 48,
                "image_size": 16,
                "patch_size": 8,
                "vision_output_dim": 64,
                "intermediate_layers_indices": [1],
                "max_num_tiles": 2,
                "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
            },
        },
        asking(
            input_ids=with_image(90, 1),
            pixel_values=wave(1, 1, 2, 3, 16, 16),
            aspect_ratio_ids=torch.tensor([[1]]),
            aspect_ratio_mask=torch.tensor([[[1, 0]]]),
            cross_attention_mask=torch.ones(1, 8, 1, 2, dtype=torch.int64),
        ),
    ),
    family(
        KIND,
        "InternVLForConditionalGeneration",
        "InternVLConfig",
        {
            "vision_config": {"class": "InternVLVisionConfig", **VISION, "image_size": [16, 16], "patch_size": [4, 4]},
            "text_config": {"class": "Qwen2Config", **LLAMA},
            "image_token_id": 90,
            "image_seq_length": 4,
        },
        asking(input_ids=with_image(90, 4), pixel_values=PIXELS),
    ),
    family(KIND, "GitForCausalLM", "GitConfig", {**WORDS, "vision_config": {**VISION}}, SEEN_AND_READ),
    family(KIND, "ViltModel", "ViltConfig", {**WORDS, **VISION, "max_position_embeddings": 32}, SEEN_AND_READ),
    family(
        KIND,
        "Pix2StructForConditionalGeneration",
        "Pix2StructConfig",
        {
            "text_config": {
                "class": "Pix2StructTextConfig",
                "vocab_size": 96,
                "hidden_size": 32,
                "d_kv": 8,
                "d_ff": 48,
                "num_layers": 1,
                "num_heads": 4,
                "decoder_start_token_id": 0,
            },
            "vision_config": {
                "class": "Pix2StructVisionConfig",
                "hidden_size": 32,
                "patch_embed_hidden_size": 32,
                "d_ff": 48,
                "d_kv": 8,
                "num_hidden_layers": 1,
                "num_attention_heads": 4,
                "seq_len": 16,
            },
        },
        asking(flattened_patches=wave(1, 6, 34).abs() * 5, decoder_input_ids=ids(5)),
    ),
    family(KIND, "LayoutLMModel", "LayoutLMConfig", WORDS, asking(input_ids=ids())),
    family(
        KIND,
        "LayoutLMv3Model",
        "LayoutLMv3Config",
        {**WORDS, "input_size": 16, "patch_size": 8, "coordinate_size": 4, "shape_size": 8, "num_hidden_layers": 1},
        asking(input_ids=ids(), bbox=torch.zeros(1, 9, 4, dtype=torch.int64), pixel_values=PIXELS),
    ),
    family(
        OTHER,
        "TimeSeriesTransformerForPrediction",
        "TimeSeriesTransformerConfig",
        {
            "prediction_length": 4,
            "context_length": 8,
            "lags_sequence": [1, 2],
            "num_time_features": 1,
            "d_model": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_ffn_dim": 24,
            "decoder_ffn_dim": 24,
        },
        asking(
            past_values=wave(1, 10),
            past_time_features=wave(1, 10, 1),
            past_observed_mask=torch.ones(1, 10),
            future_values=wave(1, 4),
            future_time_features=wave(1, 4, 1),
        ),
    ),
    family(
        OTHER,
        "PatchTSTForPrediction",
        "PatchTSTConfig",
        {
            "num_input_channels": 2,
            "context_length": 16,
            "patch_length": 4,
            "patch_stride": 4,
            "d_model": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "ffn_dim": 24,
            "prediction_length": 4,
        },
        asking(past_values=wave(1, 16, 2)),
    ),
    family(
        OTHER,
        "DecisionTransformerModel",
        "DecisionTransformerConfig",
        {
            "state_dim": 3,
            "act_dim": 2,
            "hidden_size": 32,
            "max_ep_len": 16,
            "n_layer": 1,
            "n_head": 2,
            "n_positions": 64,
            "vocab_size": 1,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
        asking(
            states=wave(1, 4, 3),
            actions=wave(1, 4, 2),
            rewards=wave(1, 4, 1),
            returns_to_go=wave(1, 4, 1),
            timesteps=torch.arange(4).view(1, 4),
            attention_mask=torch.ones(1, 4),
        ),
    ),
    family(
        OTHER,
        "PerceiverModel",
        "PerceiverConfig",
        {
            "num_latents": 4,
            "d_latents": 16,
            "d_model": 16,
            "num_self_attends_per_block": 1,
            "num_self_attention_heads": 2,
            "num_cross_attention_heads": 1,
        },
        asking(inputs=wave(1, 6, 16)),
    ),
]
