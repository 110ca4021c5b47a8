"""What one can see of a module from outside: every tensor's bytes, and its answer to a question.

Decides what counts as equal: dtype, shape, strides, whether it is trainable, and the bytes, so
that NaN equals NaN and -0.0 is not 0.0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec
import torch
from torch import nn

from coldstart.skeletons.adoption import elements, not_plain
from coldstart.skeletons.classify import Declared, take_inventory
from coldstart.skeletons.wrappers import described, is_wrapper, wrappers
from tests.zoo.family import SEED, Family

NOTHING = "on meta"
"""The digest of a tensor without memory. Some libraries leave tensors that nothing reads like that."""


class Seen(msgspec.Struct, frozen=True):
    """A module as it was before it was asked, by name, and what it answered, in order.

    ``appeared`` names the tensors that only the question has brought into being.
    """

    state: Mapping[str, str]
    answers: Sequence[str]
    appeared: Sequence[str]


def look(family: Family, module: nn.Module) -> Seen:
    """See ``module``, ask it, and see what has come to it."""
    state = {name: digest(tensor) for name, tensor in _all(module).items()}
    answers = ask(family, module)
    return Seen(state, answers, sorted(_all(module).keys() - state.keys()))


def ask(family: Family, module: nn.Module) -> list[str]:
    """The digests of what ``module`` answers to the family's question."""
    torch.manual_seed(SEED)
    with torch.inference_mode():
        return [digest(tensor) for tensor in family.answer(module, family.inputs(module))]


def naive(family: Family, module: nn.Module, expected: Sequence[str]) -> str:
    """What a strict ``load_state_dict`` into an emptied copy gives: ``equal``, ``wrong``, or what it raises.

    The emptied copy's memory is zeros, which is what fresh memory mostly is. ``module`` is used up.
    """
    stored = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    try:
        module.to("meta").to_empty(device="cpu")
        with torch.no_grad():
            for tensor in _all(module).values():
                if not is_wrapper(tensor):
                    elements(tensor).zero_()
        module.load_state_dict(stored, strict=True)
        return "equal" if ask(family, module) == expected else "wrong"
    except Exception as error:  # a model that computes on garbage may raise anything
        return f"raises {type(error).__name__}"


def digest(tensor: torch.Tensor) -> str:
    """One line that differs where anything differs."""
    kind = f"{tensor.dtype} {list(tensor.shape)} {list(tensor.stride())} {tensor.requires_grad}"
    if tensor.is_meta:
        return NOTHING
    if is_wrapper(tensor):
        return f"{kind} {described(tensor)}"  # its parts are seen, too
    if reason := not_plain(tensor):
        return f"{kind} {reason}"
    values = elements(tensor.detach()).contiguous().cpu()
    return f"{kind} {hashlib.sha256(values.numpy().data).hexdigest()[:32]}"


def _all(module: nn.Module) -> dict[str, torch.Tensor]:
    """What the module holds, but for what a hook makes again before every forward."""
    items = take_inventory(module, Declared(wrappers=True)).items
    seen = {item.name: item.tensor for item in items if item.tensor is not None and not item.derived}
    return {**seen, **dict(wrappers(module))}
