"""What the loader merges and splits, found by asking its operations; and a start that reads only what is missing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from coldstart_transformers.naming import Conversion
from coldstart_transformers.quiet import quiet
from coldstart_transformers.rearranging import rearranged
from transformers import MixtralConfig, MixtralForCausalLM, PreTrainedConfig
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.core_model_loading import (
    Chunk,
    Concatenate,
    Conv3dToLinear,
    ConversionOps,
    Interleave,
    MergeModulelist,
    PermuteForRope,
    Transpose,
    WeightConverter,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

import coldstart
from coldstart.ports import Checkpoint, StoredTensor

Shape = tuple[int, ...]
EXPERTS = 4


class Model:
    """What operations ask a model for: its config, and the shapes of its parameters."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.config = PreTrainedConfig(num_attention_heads=2)
        self._tensors = tensors

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self._tensors

    def get_parameter(self, name: str) -> torch.Tensor:
        return self._tensors[name]


class Doubled(ConversionOps):
    def convert(self, input_dict, source_patterns, target_patterns, **kwargs):  # type: ignore[no-untyped-def]
        ((tensor,),) = input_dict.values()
        return {target_patterns[0]: self.computed(tensor)}

    def computed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 2


class Raised(Doubled):
    def computed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor + 1


class Absolute(Doubled):
    def computed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.abs()


class Zeroed(Doubled):
    def computed(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(tensor)


class Mirrored(Doubled):
    def computed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.flip(-1)


class Cast(Doubled):
    def computed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(torch.float32)


class Truncated(Doubled):
    def computed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor[: len(tensor) // 2]


Tensors = dict[str, torch.Tensor]


def given(converter: WeightConverter, shapes: Sequence[Shape]) -> tuple[Conversion, Tensors]:
    """Stored tensors for each of the converter's patterns, of these shapes in turn; a pattern with a star has many."""
    made, sources = torch.Generator().manual_seed(0), dict[str, list[str]]()
    tensors: Tensors = {}
    for pattern, shape in zip(converter.source_patterns, shapes, strict=False):
        count = EXPERTS if "*" in pattern else 1
        sources[pattern] = [f"{pattern} {index}" for index in range(count)]
        tensors.update({name: torch.randn(shape, generator=made) for name in sources[pattern]})
    return Conversion(converter.target_patterns[0], converter, sources), tensors


def converted(conversion: Conversion, tensors: Tensors, model: Model) -> Tensors:
    """What the loader makes of them."""
    converter = conversion.converter
    for pattern, names in conversion.sources.items():
        for name in names:
            future: Future[torch.Tensor] = Future()
            future.set_result(tensors[name].clone())
            converter.add_tensor(conversion.target, name, pattern, future)
    made = converter.convert(conversion.target, model=model, config=model.config)
    return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}


def found(conversion: Conversion, tensors: Tensors, model: Model) -> dict[str, bytes] | None:
    """The bytes that are to be read for each result; None if only the loader knows."""
    path = Path("model.safetensors")
    stored = {
        name: StoredTensor(name, "float32", tuple(tensor.shape), path, 0, tensor.nbytes)
        for name, tensor in tensors.items()
    }
    checkpoint = Checkpoint(path=path, fingerprint="", files=(path,), tensors=stored)
    ranges = rearranged(model, [conversion], checkpoint)  # type: ignore[arg-type]
    if ranges is None:
        return None
    contents = {name: content(tensor) for name, tensor in tensors.items()}
    return {
        name: b"".join(contents[each.tensor][each.offset : each.offset + each.length] for each in parts)
        for name, parts in ranges.items()
    }


def content(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


MERGED = ["experts.*.gate.weight", "experts.*.up.weight"]
QKV = ["q_proj", "k_proj", "v_proj"]
MERGING = [MergeModulelist(dim=0), Concatenate(dim=1)]

WAYS: dict[str, tuple[WeightConverter, list[Shape], bool]] = {
    "experts, gate and up": (WeightConverter(MERGED, "experts.gate_up", MERGING), [(6, 8), (6, 8)], True),
    "experts with rows of two numbers": (WeightConverter(MERGED, "experts.gate_up", MERGING), [(6, 2), (6, 2)], True),
    "experts' biases": (WeightConverter(MERGED, "experts.gate_up", MERGING), [(6,), (6,)], True),
    "experts, down": (WeightConverter("experts.*.down", "experts.down", [MergeModulelist(dim=0)]), [(8, 6)], True),
    "a split projection": (WeightConverter("qkv", QKV, [Chunk(dim=0)]), [(12, 8)], True),
    "a split bias": (WeightConverter("qkv", QKV, [Chunk(dim=0)]), [(12,)], True),
    "a projection split and permuted": (
        WeightConverter("qkv", QKV, [Chunk(dim=0), PermuteForRope(permute_layer_names=["q_proj"])]),
        [(24, 8)],
        True,
    ),
    "a fused projection": (WeightConverter(["q", "k"], "qk", [Concatenate(dim=0)]), [(4, 8), (2, 8)], True),
    "interleaved rows": (WeightConverter("a", "b", [Interleave(dim=0)]), [(6, 8)], True),
    "a convolution made flat": (WeightConverter("a", "b", [Conv3dToLinear(3, (2, 2, 2))]), [(8, 3, 2, 2, 2)], True),
    "a mirrored vector": (WeightConverter("a", "b", [Mirrored()]), [(6,)], True),
    "mirrored rows": (WeightConverter("a", "b", [Mirrored()]), [(6, 8)], False),
    "rows left out": (WeightConverter("a", "b", [Truncated()]), [(6, 8)], True),
    "interleaved columns": (WeightConverter("a", "b", [Interleave(dim=1)]), [(6, 8)], False),
    "columns side by side": (WeightConverter(["q", "k"], "qk", [Concatenate(dim=1)]), [(4, 8), (4, 8)], False),
    "transposed": (WeightConverter("a", "b", [Transpose(0, 1)]), [(6, 8)], False),
    "transposed squares": (WeightConverter("a", "b", [Transpose(0, 1)]), [(8, 8)], False),
    "transposed rows of three numbers": (WeightConverter("a", "b", [Transpose(0, 1)]), [(3, 3)], True),
    "transposed experts": (
        WeightConverter("experts.*.down", "experts.down", [MergeModulelist(dim=0), Transpose(1, 2)]),
        [(8, 6)],
        False,
    ),
    **{
        f"{operation.__name__.lower()}, {shape}": (WeightConverter("a", "b", [operation()]), [shape], False)
        for operation in (Doubled, Raised, Absolute, Zeroed, Cast)
        for shape in ((6, 8), (6,), (4, 3))
    },
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_an_operation_is_followed_if_it_only_rearranges_rows(way: str) -> None:
    converter, shapes, followed = WAYS[way]
    conversion, tensors = given(converter, shapes)
    expected = converted(conversion, tensors, Model({}))
    contents = {name: content(tensor) for name, tensor in expected.items()}
    assert found(conversion, tensors, Model(expected)) == (contents if followed else None)


@pytest.mark.parametrize(
    ("way", "shapes", "target"),
    [
        ("experts, gate and up", [(6, 8), (6, 8)], {"experts.gate_up": (EXPERTS + 1, 12, 8)}),
        ("experts, gate and up", [(6, 8), (6, 8)], {"experts.gate_up": (EXPERTS, 12, 9)}),
        ("experts, gate and up", [(6, 8), (6, 8)], {"another": (EXPERTS, 12, 8)}),
        ("a fused projection", [(4, 8), (4, 9)], {"qk": (8, 8)}),
        ("a fused projection", [(4, 8), (0, 8)], {"qk": (4, 8)}),
    ],
)
def test_what_does_not_fit_the_model_is_not_followed(way: str, shapes: list[Shape], target: dict[str, Shape]) -> None:
    conversion, tensors = given(WAYS[way][0], shapes)
    model = Model({name: torch.empty(shape) for name, shape in target.items()})
    assert found(conversion, tensors, model) is None


def converters() -> Iterator[WeightConverter]:
    """Every converter that transformers has for any kind of model, once."""
    seen = set()
    for kind in CONFIG_MAPPING_NAMES:
        for rule in get_checkpoint_conversion_mapping(kind) or ():
            if isinstance(rule, WeightConverter):
                what = (len(rule.source_patterns), len(rule.target_patterns), str(rule.operations))
                if what not in seen:
                    seen.add(what)
                    yield rule


@pytest.mark.parametrize("shape", [(12, 8), (12,), (12, 4, 8), (12, 4, 2)])
def test_whatever_transformers_has_is_followed_rightly_or_not_at_all(shape: Shape) -> None:
    tried = followed = 0
    for converter in converters():
        conversion, tensors = given(converter, [shape] * len(converter.source_patterns))
        try:
            expected = converted(conversion, tensors, Model({}))
        except Exception:  # an operation that such shapes are not for
            continue
        tried += 1
        bytes_found = found(conversion, tensors, Model(expected))
        if bytes_found is not None:
            followed += 1
            assert bytes_found == {name: content(tensor) for name, tensor in expected.items()}, converter
    assert tried > 2
    assert followed > 1


async def test_after_a_failed_peer_only_the_missing_experts_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"vocab_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    path = tmp_path / "m"
    with quiet():
        torch.manual_seed(0)
        MixtralForCausalLM(
            MixtralConfig(**small, hidden_size=128, intermediate_size=512, num_local_experts=EXPERTS)
        ).save_pretrained(path)
        ordinary = MixtralForCausalLM.from_pretrained(path, local_files_only=True).eval()
    for name, value in {"DIRECTORY": str(tmp_path / "v"), "DRAIN": "0", "SOURCES": "1", "LEND_GBPS": "0.004"}.items():
        monkeypatch.setenv(f"COLDSTART_{name}", value)
    read: list[int] = []
    preadv = os.preadv

    def counting(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        read.append(preadv(descriptor, buffers, offset))
        return read[-1]

    async with coldstart.join(path, worker="a") as source:
        assert (source.report.path, source.built.storage.reason) == ("storage", "")
        monkeypatch.setattr(os, "preadv", counting)
        async with coldstart.join(path, worker="b", wait=False) as replica:
            async for step in replica.progress():
                if step.bytes_verified:
                    break
            await source.drain()
            report = await replica.ready()
            assert report.path == "mixed"
            assert 0 < report.bytes_storage < report.bytes_total
            layout = replica.built.arena.layout
            assert 0 <= report.bytes_storage - sum(read) <= layout.nbytes - layout.payload
            for name, tensor in ordinary.state_dict().items():
                assert torch.equal(replica.module.state_dict()[name], tensor), name
