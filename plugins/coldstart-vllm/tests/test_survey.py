"""What of a module stands against a cold start is seen before anything of it is changed."""

from __future__ import annotations

import pytest
import torch
from coldstart_vllm.survey import device_of, problems
from torch import nn


def linear() -> nn.Linear:
    return nn.Linear(4, 4)


def test_a_plain_module_has_none() -> None:
    module = linear()
    assert problems(module) == ()
    assert device_of(module) == torch.device("cpu")


def test_no_parameters() -> None:
    assert problems(nn.Module()) == ("the module has no parameters",)


@pytest.mark.parametrize(
    ("hook", "word"),
    [
        ("secondary_weights", "second checkpoint"),
        ("allow_patterns_overrides", "names the files"),
        ("is_unused_checkpoint_weight", "leaves files"),
    ],
)
def test_what_a_model_tells_the_default_loader(hook: str, word: str) -> None:
    module = linear()
    setattr(module, hook, ("x",))
    (reason,) = problems(module)
    assert word in reason


def test_memory_that_comes_while_loading() -> None:
    module = linear()
    module.late = nn.Parameter(torch.empty(3, device="meta"))
    found = problems(module)
    assert "late gets its memory while it is loaded" in found
    assert "parameters lie on cpu and meta" in found


def test_offloaded_parameters() -> None:
    module = linear()
    module.weight._vllm_is_uva_offloaded = True  # type: ignore[attr-defined]
    assert problems(module) == ("weight is offloaded",)
