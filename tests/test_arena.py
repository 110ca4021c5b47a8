"""The arena on a CPU: where tensors lie, what readers and writers see, what quarantine leaves behind."""

from __future__ import annotations

import contextlib
import mmap
import re

import pytest
import torch
from torch import nn

from coldstart.arena import FRESH, POISON, Arena, device_of
from coldstart.errors import ConfigError
from coldstart.layout import ALIGNMENT, Layout, Span, Tensor
from coldstart.ports import Memory, Region
from coldstart.skeletons.adoption import adopt

SIZES = (5, 256, 300)


@pytest.fixture
def arena() -> Arena:
    tensors = tuple(Tensor(f"t{i}", "uint8", (size,), (1,), i, 0) for i, size in enumerate(SIZES))
    return Arena(Layout(tensors, SIZES, 1024 * 1024), "cpu")


def read(arena: Arena, span: Span) -> bytes:
    with arena.reading(span) as views:
        return b"".join(views)


def test_is_fresh_page_aligned_memory(arena: Arena) -> None:
    memory: Memory = arena
    assert isinstance(memory, Memory)
    assert memory.device == "cpu"
    assert arena.layout.nbytes == 256 + 256 + 512
    whole = Span(0, arena.layout.nbytes)
    region = Region("cpu", arena.regions(whole)[0].address, 1024, 0)
    assert arena.regions(whole) == (region,)
    assert region.address % mmap.PAGESIZE == 0
    for tensor in arena.layout.tensors:
        view = arena.view(tensor)
        assert view.data_ptr() % ALIGNMENT == 0
        assert torch.equal(view, torch.full_like(view, FRESH))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_poison_is_not_a_number(dtype: str) -> None:
    poisoned = torch.full((16,), POISON, dtype=torch.uint8).view(getattr(torch, dtype))
    assert poisoned.to(torch.float64).isnan().all()


def test_padding_reads_as_zeros_and_may_be_written(arena: Arena) -> None:
    whole = Span(0, arena.layout.nbytes)
    with arena.writing(whole) as views:
        assert [view.nbytes for view in views] == [whole.length]
        views[0][:] = bytes(range(1, 256)) * 4 + bytes(range(1, 5))
    data = read(arena, whole)
    assert data[:5] == bytes([1, 2, 3, 4, 5])
    assert data[5:256] == bytes(251)
    assert 0 not in data[256 : 256 + 254]
    assert data[256 + 256 + 300 :] == bytes(212)


@pytest.mark.parametrize(
    ("span", "lengths"),
    [
        (Span(0, 5), [5]),
        (Span(0, 256), [5, 251]),
        (Span(3, 300), [2, 251, 47]),
        (Span(6, 10), [10]),
        (Span(256, 556), [556]),  # two storages without padding between them are one view
        (Span(500, 524), [312, 212]),
        (Span(10, 0), []),
    ],
)
def test_views_hold_the_span_in_order(arena: Arena, span: Span, lengths: list[int]) -> None:
    with arena.reading(span) as views:
        assert [view.nbytes for view in views] == lengths
        assert all(view.readonly for view in views)


def test_writing_and_regions_reach_the_same_memory(arena: Arena) -> None:
    with arena.writing(Span(256, 3)) as views:
        views[0][:] = b"abc"
    assert bytes(arena.view(arena.layout.tensors[1])[:3].tolist()) == b"abc"
    parts = [(offset, tensor.numel()) for offset, tensor in arena.resident(Span(3, 600))]
    assert parts == [(3, 2), (256, 347)]
    assert arena.regions(Span(256, 3))[0].address == arena.view(arena.layout.tensors[1]).data_ptr()


@pytest.mark.parametrize("span", [Span(-1, 4), Span(0, 1025), Span(1024, 1), Span(4, -1)])
def test_nothing_outside_is_lent(arena: Arena, span: Span) -> None:
    for ask in (arena.reading, arena.writing, arena.regions, arena.resident):
        with pytest.raises(ValueError, match="outside the arena of 1024"):
            ask(span)


def test_an_arena_of_nothing() -> None:
    arena = Arena(Layout((Tensor("t", "float32", (0, 3), (3, 1), -1, 0),), (), 1 << 20), "cpu")
    assert arena.view(arena.layout.tensors[0]).shape == (0, 3)
    assert read(arena, Span(0, 0)) == b""


@pytest.mark.parametrize(
    ("device", "message"),
    [("meta", "device 'meta' is not supported; use cpu or cuda:N"), ("cuda:0", "torch sees no CUDA device here")],
)
def test_devices_that_are_not_here(device: str, message: str) -> None:
    if device.startswith("cuda") and torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    with pytest.raises(ConfigError, match=re.escape(message)):
        Arena(Layout((), (), 1 << 20), device)


def test_no_room_is_one_clear_line() -> None:
    tensor = Tensor("t", "uint8", (1 << 60,), (1,), 0, 0)
    with pytest.raises(ConfigError, match=r"no room for 1152921504\.61 GB of weights on cpu"):
        Arena(Layout((tensor,), (1 << 60,), 1 << 26), "cpu")


def test_quarantine_moves_the_module_and_keeps_what_it_is_told_to() -> None:
    module = nn.Linear(3, 100)
    module.tied = module.weight
    carried = dict(module.named_parameters(remove_duplicate=False))
    weight = module.weight
    expected = weight.detach().clone()
    arena = adopt(module, carried, "cpu")
    old = arena.regions(Span(0, 1))[0].address
    late = arena.view(arena.layout.tensors[0])

    arena.quarantine(keep=[Span(0, 1200)])

    assert module.weight is module.tied is weight
    assert module.weight.data_ptr() == arena.regions(Span(0, 1))[0].address != old
    assert torch.equal(module.weight, expected)
    assert not module.bias.any(), "what was not kept is fresh"
    late.zero_()
    assert torch.equal(module.weight, expected), "a late write goes into the memory left behind"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_device_memory_goes_through_staging() -> None:
    tensors = tuple(Tensor(f"t{i}", "uint8", (size,), (1,), i, 0) for i, size in enumerate(SIZES))
    arena = Arena(Layout(tensors, SIZES, 1024 * 1024), "cuda:0")
    whole = Span(0, arena.layout.nbytes)
    with arena.writing(whole) as views:
        views[0][:] = bytes(range(256)) * 4
    with arena.reading(Span(1, 299)) as views:
        assert b"".join(views) == bytes([1, 2, 3, 4]) + bytes(251) + bytes(range(44))
    with contextlib.suppress(RuntimeError), arena.writing(Span(0, 5)) as views:
        views[0][:] = b"wrong"
        raise RuntimeError
    assert bytes(arena.view(tensors[0]).tolist()) == bytes(range(5)), "an abandoned write leaves the memory alone"


@pytest.mark.parametrize("name", ["gpu", "cudda", "", "cuda:x", "meta", "cuda:99"])
def test_a_device_that_is_not_there_is_the_operators_error(name: str) -> None:
    with pytest.raises(ConfigError, match="device"):
        device_of(name)
