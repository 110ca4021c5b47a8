"""What the zoo must know of one model class: how to make, load, ask and cold-start a small one.

A declaration only; it runs in the workers (``worker.py``). Model libraries are imported inside the
functions, so that whoever only needs the names pays for none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import torch
from torch import nn

from coldstart.ports import Skeleton

Inputs = Mapping[str, object]
Choice = str | Skeleton[nn.Module] | Callable[[], nn.Module]

SEED = 0
"""Weights, inputs and whatever a forward draws at random are made from it."""


def forward(module: nn.Module, inputs: Inputs) -> list[torch.Tensor]:
    """Every tensor that ``module`` returns, in order."""
    return list(tensors_in(module(**inputs)))


@dataclass(frozen=True)
class Family:
    """One public class, or one variant of it.

    Args:
        name: the class, and after a colon what is special: ``LlamaForCausalLM: fp16, tied``.
        library: where the class is from: ``transformers``, ``diffusers``, ``torch``.
        kind: the chapter of ``docs/families.md``: ``causal``, ``vision``, ...
        save: makes a small model with random weights and saves it the library's ordinary way.
        load: loads it the library's ordinary way, in evaluation mode.
        inputs: the question; the same for every module of this family.
        answer: asks it; the tensors are compared as bytes.
        warm: a question that the lender answers before it lends, to see that what it leaves
            behind in the lender does not reach the joiner.
        skeleton: what a host gives to ``coldstart.join``.
        dtype: the dtype that it asks for; empty for the checkpoint's own.
        refused: words that the refusal must contain; empty: the family must start.
        loads: whether the library itself can load it here; if not, only the refusal is seen.
        lends: whether one that has answered still has the weights it was given. If not, a joiner that
            comes then must notice, and read storage.
        quick: whether it is among those that every run of the tests starts.
    """

    name: str
    library: str
    kind: str
    save: Callable[[Path], None]
    load: Callable[[Path], nn.Module]
    inputs: Callable[[nn.Module], Inputs]
    answer: Callable[[nn.Module, Inputs], list[torch.Tensor]] = forward
    warm: Callable[[nn.Module], Inputs] | None = None
    skeleton: Choice = "auto"
    dtype: str = ""
    refused: str = ""
    loads: bool = True
    lends: bool = True
    quick: bool = False


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors inside what a forward returned: mappings, sequences, dataclasses, caches left out."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))
