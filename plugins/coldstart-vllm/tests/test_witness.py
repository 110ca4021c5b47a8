"""Whatever a model's ``load_weights`` does besides copying is seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from coldstart_vllm.witness import changes, state_of
from torch import nn


class Quant:
    """An object that hangs on a module, as quantisation methods do."""

    def __init__(self) -> None:
        self.input_scale = None
        self.table = torch.zeros(3)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.again = self.inner
        self.register_buffer("scale", torch.ones(1))
        self.scale_float = 1.0
        self.quant = Quant()
        self.seen = {"names": ["a"]}
        self.me = [self]


def copying(model: Model) -> None:
    model.inner.weight.data.copy_(torch.randn(4, 4))
    with torch.no_grad():
        model.inner.bias.fill_(2.0)


def test_copying_is_no_change() -> None:
    model = Model()
    carried = list(model.parameters())
    before = state_of(model, carried)
    copying(model)
    assert changes(before, state_of(model, carried)) == ()


def _flag(model: Model) -> None:
    model.has_own_head = True


def _host_mirror(model: Model) -> None:
    model.scale_float = 0.5


def _buffer(model: Model) -> None:
    model.scale.fill_(3.0)


def _in_an_object(model: Model) -> None:
    model.quant.input_scale = 0.5  # type: ignore[assignment]


def _tensor_in_an_object(model: Model) -> None:
    model.quant.table[1] = 1.0


def _in_a_container(model: Model) -> None:
    model.seen["names"].append("b")


def _on_a_parameter(model: Model) -> None:
    model.inner.weight.is_loaded = True  # type: ignore[attr-defined]


def _other_memory(model: Model) -> None:
    model.inner.weight.data = torch.zeros(4, 4)


def _other_parameter(model: Model) -> None:
    model.inner.weight = nn.Parameter(torch.zeros(4, 4))


def _dropped_parameter(model: Model) -> None:
    model.inner.bias = None


def _new_module(model: Model) -> None:
    model.folded = nn.Linear(2, 2)


def _replaced_module(model: Model) -> None:
    model.again = nn.Linear(4, 4)


def _closure(model: Model) -> None:
    model.forward = lambda x: x


@pytest.mark.parametrize(
    "more",
    [
        _flag, _host_mirror, _buffer, _in_an_object, _tensor_in_an_object, _in_a_container, _on_a_parameter,
        _other_memory, _other_parameter, _dropped_parameter, _new_module, _replaced_module, _closure,
    ],
)  # fmt: skip
def test_doing_more_is_seen(more: Callable[[Model], None]) -> None:
    model = Model()
    carried = list(model.parameters())
    before = state_of(model, carried)
    copying(model)
    more(model)
    assert changes(before, state_of(model, carried))
