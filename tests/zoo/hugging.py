"""Declarations of transformers families in few words: a class, a config, a question.

Decides how such a model is made and asked. Which ones there are is in the ``transformers_*`` modules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.zoo.family import SEED, Family, Inputs, forward

Config = Mapping[str, object]
Question = Callable[[nn.Module], Inputs]
Answer = Callable[[nn.Module, Inputs], list[torch.Tensor]]

BF16, FP16, FP32 = "bfloat16", "float16", "float32"
_SHORT = {BF16: "bf16", FP16: "fp16"}

TEXT: Config = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BLOCKS: Config = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def ids(length: int = 9, batch: int = 1, low: int = 3, high: int = 60) -> torch.Tensor:
    """Token numbers, none of them special."""
    numbers = torch.arange(batch * length) * 7 % (high - low) + low
    return numbers.view(batch, length)


def wave(*shape: int) -> torch.Tensor:
    """Numbers between -1 and 1 that are alike nowhere."""
    return torch.sin(torch.arange(math.prod(shape), dtype=torch.float32) * 0.7).view(*shape)


def tokens(module: nn.Module) -> Inputs:
    return {"input_ids": ids()}


def both(module: nn.Module) -> Inputs:
    return {"input_ids": ids(), "decoder_input_ids": ids(5)}


def picture(size: int = 16, channels: int = 3) -> Question:
    def inputs(module: nn.Module) -> Inputs:
        return {"pixel_values": wave(1, channels, size, size).to(_dtype(module))}

    return inputs


def asking(**tensors: torch.Tensor) -> Question:
    """Those tensors; floating-point ones in the dtype of the module."""

    def inputs(module: nn.Module) -> Inputs:
        dtype = _dtype(module)
        return {name: each.to(dtype) if each.is_floating_point() else each for name, each in tensors.items()}

    return inputs


def family(
    kind: str,
    model: str,
    config: str,
    values: Config,
    inputs: Question,
    *,
    note: str = "",
    dtype: str = "float32",
    asked: str = "",
    shard: str = "50GB",
    answer: Answer = forward,
    warm: Question | None = None,
    after: Callable[[Path], None] | None = None,
    refused: str = "",
    loads: bool = True,
    lends: bool = True,
    quick: bool = False,
) -> Family:
    """A class of transformers with a small config.

    Args:
        config: the config's class; its values may hold ``{"class": name, ...}`` for a nested one.
        note: what is special about this variant, besides its dtype.
        dtype: in which the model is saved.
        asked: the dtype that it is loaded in, if another.
        shard: the most that one file of the checkpoint may hold.
        after: changes the checkpoint after it was saved.
    """

    def save(directory: Path) -> None:
        transformers = import_module("transformers")
        torch.manual_seed(SEED)
        with _quiet()():
            made = getattr(transformers, model)(_config(transformers, config, values))
        with torch.no_grad():
            for parameter in made.parameters():
                if (
                    parameter.is_floating_point()
                    and parameter.numel()
                    and bool((parameter == parameter.flatten()[:1]).all())
                ):
                    parameter.add_(torch.randn_like(parameter) * 0.1)  # what all-equal weights do cannot be seen
        with _quiet()():
            made.to(getattr(torch, dtype)).save_pretrained(directory, max_shard_size=shard)
        if after:
            after(directory)

    def load(directory: Path) -> nn.Module:
        with _quiet()():
            loaded: nn.Module = getattr(import_module("transformers"), model).from_pretrained(
                directory, dtype=asked or "auto"
            )
        return loaded.eval()

    def answers(module: nn.Module, inputs: Inputs) -> list[torch.Tensor]:
        with _quiet()():
            return answer(module, inputs)

    special = ", ".join(filter(None, (_SHORT.get(dtype), note)))
    return Family(
        name=": ".join(filter(None, (model, special))),
        library="transformers",
        kind=kind,
        save=save,
        load=load,
        inputs=inputs,
        answer=answers,
        warm=warm,
        dtype=asked,
        refused=refused,
        loads=loads,
        lends=lends,
        quick=quick,
    )


def _quiet() -> Callable[[], AbstractContextManager[None]]:
    quiet: Callable[[], AbstractContextManager[None]] = import_module("coldstart_transformers.quiet").quiet
    return quiet


def _config(transformers: Any, name: str, values: Config) -> Any:
    made = {
        key: _config(transformers, str(value["class"]), {k: v for k, v in value.items() if k != "class"})
        if isinstance(value, Mapping) and "class" in value
        else value
        for key, value in values.items()
    }
    return getattr(transformers, name)(**made)


def _dtype(module: nn.Module) -> torch.dtype:
    return next(each.dtype for each in module.parameters() if each.is_floating_point())
