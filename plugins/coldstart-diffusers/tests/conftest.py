"""A small pipeline of three models, two of them of other libraries' making, and what starts it cold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from coldstart_diffusers.quiet import quiet
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

import coldstart

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS), "<|startoftext|>", "<|endoftext|>"]


def small_pipeline() -> StableDiffusionPipeline:
    torch.manual_seed(3)
    text = CLIPTextConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=24,
        max_position_embeddings=16,
        bos_token_id=52,
        eos_token_id=53,
        pad_token_id=53,
    )
    unet = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=2,
        cross_attention_dim=16,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )
    return StableDiffusionPipeline(
        vae=AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, sample_size=8),
        text_encoder=CLIPTextModel(text),
        tokenizer=CLIPTokenizer(
            vocab={word: number for number, word in enumerate(WORDS)}, merges=[], model_max_length=16
        ),
        unet=unet,
        scheduler=DDIMScheduler(num_train_timesteps=77, steps_offset=1, clip_sample=False),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pipeline's directory; not to be changed."""
    path = tmp_path_factory.mktemp("pipeline")
    with quiet():
        small_pipeline().save_pretrained(path)
    return path


@pytest.fixture
def settings(tmp_path_factory: pytest.TempPathFactory) -> coldstart.Settings:
    return coldstart.Settings(directory=str(tmp_path_factory.mktemp("v")), cache="none", drain=2.0)


Picture = Callable[[StableDiffusionPipeline], torch.Tensor]


@pytest.fixture
def picture() -> Picture:
    """What a pipeline paints in two steps."""

    def paint(pipeline: StableDiffusionPipeline) -> torch.Tensor:
        pipeline.set_progress_bar_config(disable=True)
        made = pipeline(
            "a small cat",
            num_inference_steps=2,
            output_type="pt",
            generator=torch.Generator("cpu").manual_seed(5),
        )
        found = made.images
        assert isinstance(found, torch.Tensor)
        return found

    return paint
