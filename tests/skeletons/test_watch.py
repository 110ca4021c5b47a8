"""A look at a module's tensors: what torch can tell of a change, and what it cannot."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

from coldstart.glance import Glance
from coldstart.inplace import InPlace
from coldstart.skeletons import watch
from coldstart.skeletons.adoption import adopt, layout_of
from coldstart.skeletons.watch import ModuleWatch


def net() -> nn.Sequential:
    module = nn.Sequential(nn.Linear(512, 512, bias=False), nn.Linear(512, 512, bias=False), nn.BatchNorm1d(512))
    module[1].weight = module[0].weight
    return module.eval()


def watched(module: nn.Module) -> ModuleWatch:
    arena = adopt(module, module.state_dict(keep_vars=True), "cpu", 256 * 1024)
    found = ModuleWatch(module, arena)
    found.begin()
    return found


def seen(write: Callable[[torch.Tensor], object]) -> Glance:
    module = net()
    look = watched(module)
    assert look.look() == Glance()
    write(module[0].weight)
    return look.look()


@pytest.mark.parametrize(
    "write",
    [
        lambda weight: torch.no_grad()(weight.add_)(1),
        lambda weight: torch.inference_mode()(weight.add_)(1),
        lambda weight: weight.detach().add_(1),
        lambda weight: weight.detach()[3:5].mul_(2),
    ],
    ids=["no_grad", "inference mode", "detached", "a view"],
)
def test_writes_that_torch_counts_name_the_tensor_and_its_chunks(write: Callable[[torch.Tensor], object]) -> None:
    found = seen(write)
    assert (found.moved, set(found.written), found.chunks) == ("", {"0.weight"}, (0, 1, 2, 3))


@pytest.mark.parametrize(
    "write",
    [lambda weight: weight.data.add_(1), lambda weight: weight.detach().numpy().fill(1)],
    ids=["data", "numpy"],
)
def test_writes_that_torch_does_not_count_are_for_the_digest(write: Callable[[torch.Tensor], object]) -> None:
    assert seen(write) == Glance()


def test_what_was_proven_is_not_told_again_but_what_was_written_since_is() -> None:
    module = net()
    look = watched(module)
    weight = module[0].weight.detach()
    weight.add_(1)
    first = look.look()
    weight.add_(1)
    look.proven(first)
    again = look.look()
    assert set(again.written) == {"0.weight"}, "the digest may have come before it"
    look.proven(again)
    assert look.look() == Glance()


def test_tensors_made_in_inference_mode_have_no_count_and_are_watched_all_the_same() -> None:
    with torch.inference_mode():
        module = nn.Linear(8, 8, bias=False)
    carried = dict(module.named_parameters())
    look = ModuleWatch(module, InPlace(layout_of(carried), carried, torch.device("cpu")))
    look.begin()
    with torch.inference_mode():
        module.weight.add_(1)
    assert look.look() == Glance()
    module.weight = nn.Parameter(torch.zeros(8, 8))
    assert look.look().moved == "weight was taken out of the module, or replaced"


def test_memory_that_the_driver_has_unmapped_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    module = net()
    look = watched(module)
    monkeypatch.setattr(type(look._memory), "device", property(lambda arena: "cuda:0"))
    monkeypatch.setattr(watch, "is_mapped", lambda address: address != module[2].weight.data_ptr())
    assert look.look().moved == "the memory of 2.weight was taken away"


def test_a_module_that_changes_while_it_is_looked_at_breaks_nothing() -> None:
    module = net()
    look = watched(module)
    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            module.add_module("more", nn.Linear(2, 2))
            del module.more

    thread = threading.Thread(target=change)
    thread.start()
    try:
        assert all(look.look() == Glance() for _ in range(300))
    finally:
        over.set()
        thread.join()
