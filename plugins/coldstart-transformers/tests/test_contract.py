"""The transformers skeleton passes the suite for builders, with and without converted weights."""

from __future__ import annotations

from pathlib import Path

import torch
from coldstart_transformers import FACTORY
from coldstart_transformers.quiet import quiet
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, MixtralConfig, MixtralForCausalLM, PreTrainedModel

from coldstart.ports import Checkpoint, Skeleton
from coldstart.testing.checkpoints import read_checkpoint
from coldstart.testing.skeleton_contract import SkeletonContract


class TestTied(SkeletonContract):
    def open_skeleton(self) -> Skeleton[nn.Module]:
        return FACTORY.open()  # type: ignore[return-value]  # Skeleton is invariant in its module

    def model(self) -> PreTrainedModel:
        return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2))

    def checkpoint(self, directory: Path) -> Checkpoint:
        torch.manual_seed(2)
        with quiet():
            self.model().save_pretrained(directory)
        return read_checkpoint(directory)


class TestMerged(TestTied):
    """Mixtral's experts are stored one by one, and merged while loading."""

    def model(self) -> PreTrainedModel:
        config = MixtralConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            num_local_experts=2,
        )
        return MixtralForCausalLM(config)
