"""Layouts of awkward tensors, and moving a module's tensors without changing the objects."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch import nn

from coldstart.arena import FRESH, Arena
from coldstart.errors import ConfigError, SkeletonError
from coldstart.layout import MIN_CHUNK, Layout, Span, differences
from coldstart.skeletons.adoption import adopt, elements, layout_of

DTYPES = [
    str(dtype).removeprefix("torch.")
    for dtype in sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
    if not str(dtype).startswith(("torch.q", "torch.bits"))  # quantised: refused; bits: no kernels at all
]


def holder(**tensors: torch.Tensor) -> nn.Module:
    module = nn.Module()
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor)
    return module


def buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.named_buffers(remove_duplicate=False))


def raw(tensor: torch.Tensor) -> bytes:
    return elements(tensor).contiguous().numpy().tobytes()


def awkward() -> dict[str, torch.Tensor]:
    base = torch.arange(40, dtype=torch.float32)
    return {
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "transposed": torch.randn(3, 7).t(),
        "expanded": torch.randn(3, 1).expand(3, 4),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "also_empty": torch.empty(4, 0),
        "view": base[5:20],
        "overlapping_view": base[10:30],
        "far_view": base[35:],
        "strided": torch.arange(30, dtype=torch.int16)[::3],
        "alias": base[5:20],
        "byte": torch.ones(3, dtype=torch.bool),
    }


def test_awkward_tensors_keep_shape_stride_and_bytes() -> None:
    tensors = awkward()
    expected = {name: (tensor.shape, tensor.stride(), raw(tensor)) for name, tensor in tensors.items()}
    module = holder(**tensors)
    arena = adopt(module, buffers(module), "cpu")
    for name, tensor in buffers(module).items():
        assert (tensor.shape, tensor.stride(), raw(tensor)) == expected[name], name
        assert tensor.dtype == tensors[name].dtype
    base = arena.regions(Span(0, 1))[0].address
    for name in ("channels_last", "transposed", "expanded", "scalar", "view", "strided", "byte"):
        assert base <= buffers(module)[name].data_ptr() < base + arena.layout.nbytes, name


def test_views_share_what_they_overlap_and_nothing_else() -> None:
    places = {tensor.name: tensor for tensor in layout_of(awkward()).tensors}
    layout = layout_of(awkward())
    assert places["view"].storage == places["overlapping_view"].storage == places["alias"].storage
    assert [places[name].offset for name in ("view", "overlapping_view", "alias")] == [0, 20, 0]
    assert layout.storages[places["view"].storage] == 25 * 4
    assert places["far_view"].storage != places["view"].storage
    assert layout.storages[places["expanded"].storage] == 3 * 4
    assert layout.storages[places["strided"].storage] == 28 * 2
    assert places["empty"].storage == places["also_empty"].storage == -1
    assert places["scalar"].shape == ()


def test_a_module_keeps_its_layout_when_it_moves() -> None:
    tensors = awkward()
    layout = layout_of(tensors)
    module = holder(**tensors)
    arena = adopt(module, buffers(module), "cpu")
    assert arena.layout == layout
    assert layout_of(buffers(module)) == layout, differences(layout_of(buffers(module)), layout)
    again = adopt(module, buffers(module), "cpu")
    assert again.layout == layout


def test_writing_through_one_alias_shows_in_the_others() -> None:
    module = holder(**awkward())
    adopt(module, buffers(module), "cpu")
    module.get_buffer("overlapping_view")[0] = 99.0
    assert module.get_buffer("view")[5] == module.get_buffer("alias")[5] == 99.0


def test_meta_tensors_are_laid_out_by_their_sharing() -> None:
    base = torch.empty(40, device="meta")
    tensors = {"a": base[:20], "b": base[10:], "c": torch.empty(40, device="meta"), "d": torch.empty((), device="meta")}
    layout = layout_of(tensors)
    assert [tensor.storage for tensor in layout.tensors] == [0, 0, 1, 2]
    assert layout.storages == (160, 160, 4)
    module = holder(**tensors)
    arena = adopt(module, buffers(module), "cpu")
    assert arena.layout == layout
    assert not any(tensor.any() for tensor in buffers(module).values())


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_travels_as_bytes(name: str) -> None:
    dtype = getattr(torch, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # complex32 says that it is experimental
        memory = torch.arange(6 * dtype.itemsize, dtype=torch.uint8)
        tensor = torch.empty(0, dtype=dtype).set_(memory.untyped_storage(), 0, (2, 3), (3, 1))
        module = holder(t=tensor)
        arena = adopt(module, {"t": tensor}, "cpu")
        assert arena.layout.tensors[0].dtype == name
        assert arena.layout.storages == (6 * dtype.itemsize,)
        with arena.reading(Span(0, 6 * dtype.itemsize)) as views:
            assert b"".join(views) == memory.numpy().tobytes()
        assert module.get_buffer("t").dtype == dtype


def test_views_of_several_dtypes_stay_aligned() -> None:
    memory = torch.zeros(64, dtype=torch.uint8)
    tensors = {"narrow": memory[6:30], "wide": memory[8:24].view(torch.int64)}
    layout = layout_of(tensors)
    assert [tensor.offset for tensor in layout.tensors] == [6, 8]
    module = holder(**tensors)
    adopt(module, buffers(module), "cpu")
    assert module.get_buffer("wide").data_ptr() % 8 == 0


def test_objects_stay_and_only_memory_changes() -> None:
    class Labelled(nn.Parameter):
        pass

    module = nn.Module()
    module.weight = Labelled(torch.randn(4, 4))
    module.weight.label = "mine"
    module.tied = module.weight
    module.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
    module.counter = nn.Parameter(torch.arange(3), requires_grad=False)
    module.listed = [module.weight]
    before = dict(module.named_parameters(remove_duplicate=False))
    values = {name: tensor.detach().clone() for name, tensor in before.items()}
    adopt(module, before, "cpu")
    assert module.weight is module.tied is module.listed[0] is before["weight"]
    assert type(module.weight) is Labelled
    assert module.weight.label == "mine"
    assert (module.weight.requires_grad, module.frozen.requires_grad) == (True, False)
    assert all(torch.equal(tensor, values[name]) for name, tensor in module.named_parameters(remove_duplicate=False))
    assert len({tensor.untyped_storage().data_ptr() for tensor in module.parameters()}) == 1


def test_recurrent_modules_keep_their_flat_list_of_weights() -> None:
    torch.manual_seed(0)
    with torch.device("meta"):
        module = nn.LSTM(4, 5)
    ordinary = nn.LSTM(4, 5)
    arena = adopt(module, dict(module.named_parameters()), "cpu")
    flat = {id(weight) for weight in module._flat_weights}
    assert flat == {id(parameter) for parameter in module.parameters()}
    with torch.no_grad():
        for mine, theirs in zip(module.parameters(), ordinary.parameters(), strict=True):
            mine.copy_(theirs)
    data = torch.randn(3, 2, 4)
    assert arena.layout.payload == sum(parameter.nbytes for parameter in ordinary.parameters())
    assert torch.equal(module(data)[0], ordinary(data)[0])


def test_tensors_that_are_referred_to_weakly_are_replaced_everywhere() -> None:
    import weakref

    module = nn.Linear(2, 2)
    module.tied = module.weight
    reference = weakref.ref(module.weight)
    value = module.weight.detach().clone()
    arena = adopt(module, dict(module.named_parameters(remove_duplicate=False)), "cpu")
    assert module.weight is module.tied is not reference()
    assert module.weight.data_ptr() == arena.regions(Span(0, 1))[0].address
    assert torch.equal(module.weight, value)


def test_inference_tensors_become_ordinary_ones() -> None:
    with torch.inference_mode():
        module = nn.Linear(3, 3)
        values = module.weight.clone()
        adopt(module, dict(module.named_parameters()), "cpu")
    assert not module.weight.is_inference()
    assert torch.equal(module.weight, values)


def test_gaps_between_strided_views_hold_nothing() -> None:
    module = holder(t=torch.zeros(10, dtype=torch.uint8)[::3])
    arena = adopt(module, buffers(module), "cpu")
    with arena.reading(Span(0, 10)) as views:
        assert b"".join(views) == bytes([0, FRESH, FRESH] * 3 + [0])


def test_chunk_size() -> None:
    tensors = {"t": torch.empty(300 * 1024 * 1024, device="meta", dtype=torch.uint8)}
    assert layout_of({}).chunk_bytes == MIN_CHUNK
    assert layout_of(tensors).chunk_bytes == 4 * 1024 * 1024
    assert layout_of(tensors, 256 * 1024).chunk_bytes == 256 * 1024
    with pytest.raises(ConfigError, match="chunk size 1000 is not a multiple"):
        layout_of(tensors, 1000)


def test_layout_of_nothing() -> None:
    assert layout_of({}) == Layout((), (), MIN_CHUNK)
    assert isinstance(adopt(nn.Module(), {}, "cpu"), Arena)


def test_tensors_that_are_not_plain_memory_are_named() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # quantised tensors are deprecated
        quantised = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8)
    refused = {
        "a sparse one": (torch.eye(2).to_sparse(), "it is not strided but sparse_coo"),
        "a quantised one": (quantised, "it is quantised in torch's old way"),
        "a conjugated one": (torch.ones(2, dtype=torch.complex64).conj(), "it is a lazily conjugated"),
        "a lazy one": (nn.UninitializedParameter(), "it is an uninitialised parameter of a lazy module"),
    }
    for name, (tensor, reason) in refused.items():
        with pytest.raises(SkeletonError, match=re.escape(f"tensor {name} cannot be carried: {reason}")):
            layout_of({name: tensor})


def test_only_tensors_are_carried() -> None:
    with pytest.raises(SkeletonError, match="count is carried but is no tensor"):
        adopt(nn.Module(), {"count": 3}, "cpu")
