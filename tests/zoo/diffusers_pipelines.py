"""Whole pipelines: every component, the scheduler, the tokenizers, and a picture in two steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from string import ascii_lowercase
from typing import Any

from tests.zoo.diffusers_transformers import FLUX, SD3
from tests.zoo.diffusers_unets import PIXELS, SDXL, STEERING, TEXT
from tests.zoo.diffusing import pipeline, rewritten
from tests.zoo.hugging import wave

LENGTH = 16
"""Tokens of a prompt."""
ENCODER: Mapping[str, object] = {
    "vocab_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": LENGTH,
    "bos_token_id": 52,
    "eos_token_id": 53,
    "pad_token_id": 53,
}
VISION: Mapping[str, object] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 8,
}
T5: Mapping[str, object] = {
    "vocab_size": 64,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "feed_forward_proj": "gated-gelu",
}
PROMPT: Mapping[str, object] = {"prompt": "a small cat", "height": 16, "width": 16}


def library(name: str) -> Any:
    return import_module(name)


def picture_vae(channels: int = 4, **more: object) -> Any:
    return library("diffusers").AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=channels,
        norm_num_groups=4,
        sample_size=16,
        **more,
    )


def clip(width: int = 16, projected: bool = False) -> Any:
    transformers = library("transformers")
    config = transformers.CLIPTextConfig(**ENCODER, hidden_size=width, projection_dim=width)
    return (transformers.CLIPTextModelWithProjection if projected else transformers.CLIPTextModel)(config)


def clip_words() -> Any:
    tokens = [*ascii_lowercase, *(f"{letter}</w>" for letter in ascii_lowercase), "<|startoftext|>", "<|endoftext|>"]
    numbered = {token: number for number, token in enumerate(tokens)}
    return library("transformers").CLIPTokenizer(vocab=numbered, merges=[], model_max_length=LENGTH)


def t5(kind: str = "T5") -> Any:
    transformers = library("transformers")
    return getattr(transformers, f"{kind}EncoderModel")(getattr(transformers, f"{kind}Config")(**T5))


def t5_words() -> Any:
    tokens = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -2.0)]
    tokens += [(letter, -3.0) for letter in ascii_lowercase]
    return library("transformers").T5Tokenizer(vocab=tokens, extra_ids=0, model_max_length=LENGTH)


def stable_diffusion(**more: Callable[[], Any]) -> Callable[[], Any]:
    """As published, without the safety checker or with ``more``."""

    def make() -> Any:
        diffusers = library("diffusers")
        parts: dict[str, Any] = {"safety_checker": None, "feature_extractor": None}
        parts.update({name: made() for name, made in more.items()})
        return diffusers.StableDiffusionPipeline(
            vae=picture_vae(),
            text_encoder=clip(),
            tokenizer=clip_words(),
            unet=diffusers.UNet2DConditionModel(**TEXT),
            scheduler=diffusers.PNDMScheduler(skip_prk_steps=True, steps_offset=1),
            requires_safety_checker="safety_checker" in more and parts["safety_checker"] is not None,
            **parts,
        )

    return make


def safety_checker() -> Any:
    checker = import_module("diffusers.pipelines.stable_diffusion.safety_checker").StableDiffusionSafetyChecker
    return checker(library("transformers").CLIPConfig(vision_config=VISION, text_config=ENCODER, projection_dim=16))


def image_processor() -> Any:
    return library("transformers").CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=16)


def stable_diffusion_xl() -> Any:
    diffusers = library("diffusers")
    return diffusers.StableDiffusionXLPipeline(
        vae=picture_vae(),
        text_encoder=clip(8),
        text_encoder_2=clip(8, projected=True),
        tokenizer=clip_words(),
        tokenizer_2=clip_words(),
        unet=diffusers.UNet2DConditionModel(**{**SDXL, "projection_class_embeddings_input_dim": 56}),
        scheduler=diffusers.EulerDiscreteScheduler(),
        add_watermarker=False,
    )


def stable_diffusion_3() -> Any:
    diffusers = library("diffusers")
    return diffusers.StableDiffusion3Pipeline(
        transformer=diffusers.SD3Transformer2DModel(**{**SD3, "pooled_projection_dim": 32}),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=picture_vae(shift_factor=0.1),
        text_encoder=clip(16, projected=True),
        tokenizer=clip_words(),
        text_encoder_2=clip(16, projected=True),
        tokenizer_2=clip_words(),
        text_encoder_3=t5(),
        tokenizer_3=t5_words(),
    )


def flux() -> Any:
    diffusers = library("diffusers")
    return diffusers.FluxPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=picture_vae(1, use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.1),
        text_encoder=clip(32),
        tokenizer=clip_words(),
        text_encoder_2=t5(),
        tokenizer_2=t5_words(),
        transformer=diffusers.FluxTransformer2DModel(**FLUX),
    )


def wan() -> Any:
    diffusers = library("diffusers")
    return diffusers.WanPipeline(
        tokenizer=t5_words(),
        text_encoder=t5("UMT5"),
        transformer=diffusers.WanTransformer3DModel(
            num_attention_heads=2,
            attention_head_dim=12,
            in_channels=16,
            out_channels=16,
            text_dim=32,
            freq_dim=32,
            ffn_dim=32,
            num_layers=1,
            rope_max_seq_len=32,
        ),
        vae=diffusers.AutoencoderKLWan(
            base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
        ),
        scheduler=diffusers.UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True),
        transformer_2=None,
    )


def controlled() -> Any:
    diffusers = library("diffusers")
    return diffusers.StableDiffusionControlNetPipeline(
        vae=picture_vae(),
        text_encoder=clip(),
        tokenizer=clip_words(),
        unet=diffusers.UNet2DConditionModel(**TEXT),
        controlnet=diffusers.ControlNetModel(**STEERING),
        scheduler=diffusers.DDIMScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def denoising_only() -> Any:
    diffusers = library("diffusers")
    return diffusers.DDPMPipeline(unet=diffusers.UNet2DModel(**PIXELS), scheduler=diffusers.DDPMScheduler())


FAMILIES = [
    pipeline("StableDiffusionPipeline", stable_diffusion(), PROMPT, quick=True),
    pipeline(
        "StableDiffusionPipeline",
        stable_diffusion(safety_checker=safety_checker, feature_extractor=image_processor),
        PROMPT,
        note="with its safety checker",
    ),
    pipeline("StableDiffusionPipeline", stable_diffusion(), PROMPT, note="bf16 asked for", asked="bfloat16"),
    pipeline("StableDiffusionXLPipeline", stable_diffusion_xl, PROMPT),
    pipeline("StableDiffusion3Pipeline", stable_diffusion_3, {**PROMPT, "max_sequence_length": 12}),
    pipeline(
        "StableDiffusion3Pipeline",
        stable_diffusion_3,
        {**PROMPT, "max_sequence_length": 12},
        note="bf16 stored",
        stored="bfloat16",
        quick=True,
    ),
    pipeline("FluxPipeline", flux, {**PROMPT, "max_sequence_length": 12}),
    pipeline("WanPipeline", wan, {**PROMPT, "num_frames": 5, "max_sequence_length": 12}),
    pipeline(
        "WanPipeline",
        wan,
        {**PROMPT, "num_frames": 5, "max_sequence_length": 12},
        note="bf16 stored, fp32 islands",
        stored="bfloat16",
    ),
    pipeline("StableDiffusionControlNetPipeline", controlled, {**PROMPT, "image": wave(1, 3, 16, 16).abs()}),
    pipeline("DDPMPipeline", denoising_only, {}),
    pipeline(
        "DDPMPipeline",
        denoising_only,
        {},
        note="with code of its own",
        edit=rewritten("model_index.json", unet=["unet", "MyUNet"]),
        refused="which is neither diffusers' nor transformers' own; code inside a checkpoint is never run",
    ),
    pipeline(
        "StableDiffusionPipeline",
        stable_diffusion(),
        PROMPT,
        note="a quantised component",
        edit=rewritten("unet/config.json", quantization_config={"quant_method": "bitsandbytes"}),
        refused="is quantised (bitsandbytes), and such weights are transformed after loading",
    ),
]
