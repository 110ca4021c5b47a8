"""A cold start beside a thread that blocks: filled, lent to the next one, withdrawn. Without vLLM."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Set
from pathlib import Path

import pytest
import torch
from coldstart_vllm import background, proof
from coldstart_vllm.background import Background, Order
from coldstart_vllm.options import parse
from coldstart_vllm.relay import Relay
from coldstart_vllm.skeleton import EngineSkeleton
from torch import nn

from coldstart import ColdstartError, Rank

pytestmark = pytest.mark.timeout(120)

Fill = Callable[[nn.Module], Set[str] | None]
Make = Callable[..., tuple[nn.Module, Background]]


@pytest.fixture
def make(checkpoint: Path, tiny: nn.Module, fill: Fill) -> Iterator[Make]:
    """``make(fill)``: a fresh module and its cold start, not begun; all are left at the end."""
    made: list[Background] = []

    def build(filling: Fill = fill, **extra: object) -> tuple[nn.Module, Background]:
        module = type(tiny)()
        relay: Relay[Set[str] | None] = Relay()
        skeleton = EngineSkeleton(module, "tiny", lambda inner: relay.call(lambda: filling(inner)))
        order = Order(checkpoint, skeleton, "cpu", Rank(), "", parse(extra).settings)
        made.append(Background(order, relay, lambda progress: None))
        return module, made[-1]

    yield build
    for each in made:
        each.leave(wait=True)


def never(module: nn.Module) -> Set[str] | None:
    raise AssertionError("a peer has these weights")


def test_the_first_is_filled_by_the_thread_that_waits(make: Make, fill: Fill) -> None:
    threads: list[int] = []

    def noted(module: nn.Module) -> Set[str] | None:
        threads.append(threading.get_ident())
        return fill(module)

    _, first = make(noted)
    assert first.start().path == "storage"
    assert threads == [threading.get_ident()]


def test_the_next_one_gets_it_from_the_first(make: Make) -> None:
    one, first = make()
    first.start()
    two, second = make(never)
    report = second.start()
    assert (report.path, report.verified, report.bytes_storage) == ("peer", True, 0)
    for name, parameter in two.named_parameters():
        assert torch.equal(parameter, one.get_parameter(name))


def test_who_has_left_lends_nothing(make: Make) -> None:
    module, first = make()
    first.start()
    background.remember(module, first)
    assert background.withdraw(module)
    assert not background.withdraw(module)
    assert first.replica is None
    _, second = make()
    assert second.start().path == "storage"


def test_everything_is_withdrawn_at_once(make: Make) -> None:
    started = [make() for _ in range(2)]
    for module, each in started:
        each.start()
        background.remember(module, each)
    background.withdraw_all()
    assert [each.replica for _, each in started] == [None, None]


def test_what_goes_wrong_is_raised_where_it_was_asked_for(make: Make) -> None:
    def broken(module: nn.Module) -> Set[str] | None:
        raise ValueError("the disk is gone")

    _, first = make(broken)
    with pytest.raises(ColdstartError, match="the disk is gone"):
        first.start()


def test_an_interrupted_engine_ends_its_cold_start(make: Make) -> None:
    def interrupted(module: nn.Module) -> Set[str] | None:
        raise KeyboardInterrupt

    _, first = make(interrupted)
    with pytest.raises(KeyboardInterrupt):
        first.start()
    first.leave(wait=True)
    assert first.replica is None


# ------------------------------------------------------------------------------ what may be lent on


def test_what_nobody_has_touched_is_proven(make: Make) -> None:
    module, first = make()
    report = first.start()
    assert first.replica is not None
    assert proof.moved(module, first.replica) == ()
    assert proof.root_of(first.replica) == report.root


def test_a_byte_changed_in_place_is_seen(make: Make) -> None:
    module, first = make()
    report = first.start()
    assert first.replica is not None
    module.get_parameter("norm").data[3] += 1
    assert proof.moved(module, first.replica) == ()
    assert proof.root_of(first.replica) != report.root


@pytest.mark.parametrize("how", ["parameter", "data", "emptied", "transposed", "removed"])
def test_replaced_memory_is_seen_and_the_rest_moves_off(make: Make, how: str) -> None:
    module, first = make()
    report = first.start()
    assert first.replica is not None
    merged = module.get_parameter("merged")
    match how:
        case "parameter":
            module.merged = nn.Parameter(merged.clone(), requires_grad=False)
        case "data":
            merged.data = merged.data.clone()
        case "emptied":
            module.merged = nn.Parameter(torch.empty(0), requires_grad=False)
        case "transposed":
            merged.data = merged.data.t()
        case _:
            del module.merged
    assert proof.moved(module, first.replica) == ("merged",)
    norm = module.get_parameter("norm")
    before = norm.clone()
    proof.move_off(module, first.replica)
    assert set(proof.moved(module, first.replica)) == {"merged", "norm", "scale"}
    assert module.get_parameter("norm") is norm
    assert torch.equal(norm, before)
    assert proof.root_of(first.replica) == report.root
