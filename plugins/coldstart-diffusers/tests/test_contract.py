"""The diffusers skeleton passes the suite for builders: a model, one in another dtype, and a pipeline."""

from __future__ import annotations

from pathlib import Path

import torch
from coldstart_diffusers import FACTORY
from coldstart_diffusers.quiet import quiet
from diffusers import AutoencoderKL, DDPMPipeline, DDPMScheduler, UNet2DModel, WanTransformer3DModel
from torch import nn

from coldstart.ports import Checkpoint, Skeleton
from coldstart.testing.checkpoints import read_checkpoint
from coldstart.testing.skeleton_contract import SkeletonContract


class TestModel(SkeletonContract):
    dtype = ""

    def open_skeleton(self) -> Skeleton[nn.Module]:
        return FACTORY.open(dtype=self.dtype)

    def save(self, directory: Path) -> None:
        AutoencoderKL(block_out_channels=(8,), norm_num_groups=4).save_pretrained(directory)

    def checkpoint(self, directory: Path) -> Checkpoint:
        torch.manual_seed(2)
        with quiet():
            self.save(directory)
        return read_checkpoint(directory)


class TestConverted(TestModel):
    """Stored as float32 and asked for in another dtype, but for what the class insists on."""

    dtype = "bfloat16"

    def save(self, directory: Path) -> None:
        WanTransformer3DModel(
            num_attention_heads=2,
            attention_head_dim=12,
            in_channels=4,
            out_channels=4,
            text_dim=16,
            freq_dim=32,
            ffn_dim=32,
            num_layers=1,
            rope_max_seq_len=32,
        ).save_pretrained(directory)


class TestPipeline(TestModel):
    def save(self, directory: Path) -> None:
        unet = UNet2DModel(
            sample_size=8,
            block_out_channels=(8,),
            norm_num_groups=4,
            down_block_types=("DownBlock2D",),
            up_block_types=("UpBlock2D",),
        )
        DDPMPipeline(unet=unet, scheduler=DDPMScheduler()).save_pretrained(directory)
