"""Declarations of diffusers families in few words: a class, its config, a question.

Decides how such a model or pipeline is made and asked. Which ones there are is in the ``diffusers_*`` modules.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from tests.zoo.family import SEED, Family, Inputs, forward
from tests.zoo.hugging import wave

Question = Callable[[nn.Module], Inputs]
Answer = Callable[[nn.Module, Inputs], list[torch.Tensor]]

NOW = torch.tensor([7])
"""A step of denoising."""


def ones(*shape: int) -> torch.Tensor:
    """A mask that hides nothing."""
    return torch.ones(shape, dtype=torch.int64)


def asking(**tensors: torch.Tensor) -> Question:
    """Those tensors; floating-point ones in the dtype that most of the module has, islands of float32 aside."""

    def inputs(module: nn.Module) -> Inputs:
        sizes: Counter[torch.dtype] = Counter()
        for parameter in module.parameters():
            if parameter.is_floating_point():
                sizes[parameter.dtype] += parameter.numel()
        dtype = sizes.most_common(1)[0][0]
        return {name: each.to(dtype) if each.is_floating_point() else each for name, each in tensors.items()}

    return inputs


def sample(*shape: int, **more: torch.Tensor) -> Question:
    """One tensor and whatever goes with it."""
    return asking(sample=wave(*shape), **more)


def denoising(*shape: int, words: tuple[int, int] | None = None, **more: torch.Tensor) -> Question:
    """What a transformer is asked: latents, a step and, of ``words`` (how many, of what width), a prompt."""
    prompt = {"encoder_hidden_states": wave(1, *words)} if words else {}
    return asking(**{"hidden_states": wave(*shape), "timestep": NOW, **prompt, **more})


def beside(question: Question, **plain: object) -> Question:
    """``question`` with arguments that are no tensors."""

    def inputs(module: nn.Module) -> Inputs:
        return {**question(module), **plain}

    return inputs


def family(
    kind: str,
    model: str,
    values: Mapping[str, object],
    inputs: Question,
    *,
    note: str = "",
    stored: str = "float32",
    asked: str = "",
    answer: Answer = forward,
    shards: str = "",
    refused: str = "",
    edit: Callable[[Path], None] | None = None,
    quick: bool = False,
) -> Family:
    """A class of diffusers with a small config.

    Args:
        stored: the dtype in which the model is saved.
        asked: the dtype that a host asks for; empty: the one that it is saved in.
        shards: the size of a shard; empty: one file.
        edit: changes what was saved.
    """

    def save(directory: Path) -> None:
        found = getattr(import_module("diffusers"), model)
        torch.manual_seed(SEED)
        made = found(**values)
        unlike(made)
        with quiet(), TemporaryDirectory() as before:
            if stored != "float32":  # as those are made that people publish
                made.save_pretrained(before)
                made = found.from_pretrained(before, torch_dtype=getattr(torch, stored))
            made.save_pretrained(directory, **({"max_shard_size": shards} if shards else {}))
        if edit:
            edit(directory)

    def load(directory: Path) -> nn.Module:
        dtype = asked or (stored if stored != "float32" else "")
        with quiet():
            loaded: nn.Module = getattr(import_module("diffusers"), model).from_pretrained(
                directory, **({"torch_dtype": getattr(torch, dtype)} if dtype else {})
            )
        return loaded

    return Family(
        name=f"{model}: {note}" if note else model,
        library="diffusers",
        kind=kind,
        save=save,
        load=load,
        inputs=inputs,
        answer=answer,
        dtype=asked,
        refused=refused,
        loads=not refused,
        quick=quick,
    )


def pipeline(
    name: str,
    make: Callable[[], Any],
    inputs: Mapping[str, object],
    *,
    note: str = "",
    stored: str = "float32",
    asked: str = "",
    refused: str = "",
    edit: Callable[[Path], None] | None = None,
    quick: bool = False,
) -> Family:
    """A whole pipeline; the answer is what it generates in two steps. ``make`` makes a small one."""

    def save(directory: Path) -> None:
        torch.manual_seed(SEED)
        made = make()
        for component in made.components.values():
            if isinstance(component, nn.Module):
                unlike(component)
        with quiet(), TemporaryDirectory() as before:
            if stored != "float32":
                made.save_pretrained(before)
                made = type(made).from_pretrained(before, torch_dtype=getattr(torch, stored))
            made.save_pretrained(directory)
        if edit:
            edit(directory)

    def load(directory: Path) -> nn.Module:
        dtype = asked or (stored if stored != "float32" else "")
        with quiet():
            loaded = getattr(import_module("diffusers"), name).from_pretrained(
                directory, **({"torch_dtype": getattr(torch, dtype)} if dtype else {})
            )
        hosted: nn.Module = import_module("coldstart_diffusers.pipeline").HostedPipeline(loaded)
        return hosted.eval()

    return Family(
        name=f"{name}: {note}" if note else name,
        library="diffusers",
        kind="pipeline",
        save=save,
        load=load,
        inputs=lambda module: inputs,
        answer=generate,
        dtype=asked,
        refused=refused,
        loads=not refused,
        quick=quick,
    )


def generate(module: nn.Module, inputs: Inputs) -> list[torch.Tensor]:
    """Two steps with a fixed generator."""
    asked: Any = module
    asked.pipeline.set_progress_bar_config(disable=True)
    made = asked(**inputs, num_inference_steps=2, output_type="pt", generator=torch.Generator("cpu").manual_seed(SEED))
    answer = made[0]
    return list(answer) if isinstance(answer, list | tuple) else [answer]


def rewritten(file: str, **changes: object) -> Callable[[Path], None]:
    """An edit of one JSON file of what was saved."""

    def edit(directory: Path) -> None:
        values = json.loads((directory / file).read_text())
        (directory / file).write_text(json.dumps({**values, **changes}))

    return edit


def unlike(model: nn.Module) -> None:
    """Change weights that are all equal: what those do cannot be seen."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and bool((parameter == parameter.flatten()[:1]).all()):
                parameter.add_(torch.randn_like(parameter) * 0.1)


def quiet() -> Any:
    """Neither progress bars nor warnings."""
    return import_module("coldstart_diffusers.quiet").quiet()
