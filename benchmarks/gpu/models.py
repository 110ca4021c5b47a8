"""What is moved: layouts with the shapes of real models, filled with random bytes on the device.

Decides shapes and sizes; nothing is downloaded. It must not know who measures what.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
import torch

from benchmarks.gpu.words import Size
from coldstart.arena import Arena, settle
from coldstart.layout import Layout, Span, Tensor, chunk_bytes_for

Shape = tuple[int, ...]
BYTES: Final = 2
"""Of one bf16 element."""


class Decoder(msgspec.Struct, frozen=True):
    """Sizes of a decoder-only transformer."""

    layers: int
    hidden: int
    kv: int
    inner: int
    vocabulary: int

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Nine tensors a layer, and three."""
        hidden = self.hidden
        yield "embed.weight", (self.vocabulary, hidden)
        for layer in range(self.layers):
            at = f"layers.{layer}"
            yield f"{at}.q.weight", (hidden, hidden)
            yield f"{at}.k.weight", (self.kv, hidden)
            yield f"{at}.v.weight", (self.kv, hidden)
            yield f"{at}.o.weight", (hidden, hidden)
            yield f"{at}.gate.weight", (self.inner, hidden)
            yield f"{at}.up.weight", (self.inner, hidden)
            yield f"{at}.down.weight", (hidden, self.inner)
            yield f"{at}.norm.weight", (hidden,)
            yield f"{at}.post_norm.weight", (hidden,)
        yield "norm.weight", (hidden,)
        yield "head.weight", (self.vocabulary, hidden)


class Experts(msgspec.Struct, frozen=True):
    """Only the experts of a mixture: many small tensors of one shape."""

    count: int
    shape: Shape

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        for index in range(self.count):
            yield f"experts.{index}.weight", self.shape


FULL: Final[Mapping[str, Decoder | Experts]] = {
    "llama": Decoder(layers=32, hidden=4096, kv=1024, inner=14336, vocabulary=128256),
    "moe": Experts(4608, (768, 2048)),
    "large": Decoder(layers=35, hidden=8192, kv=1024, inner=28672, vocabulary=128256),
}
"""16.06 GB in 291 tensors; 14.50 GB in 4,608 tensors of 3.1 MB; 64.1 GB in 318 tensors."""

TOY: Final[Mapping[str, Decoder | Experts]] = {
    "llama": Decoder(layers=4, hidden=256, kv=64, inner=768, vocabulary=2000),
    "moe": Experts(48, (128, 256)),
    "large": Decoder(layers=6, hidden=256, kv=64, inner=768, vocabulary=4000),
}


def shapes(name: str, size: Size) -> list[tuple[str, Shape]]:
    """Name and shape of every tensor of the model ``name``, all of them bf16."""
    return list((TOY if size == "toy" else FULL)[name].shapes())


def layout(name: str, size: Size) -> Layout:
    """The same as coldstart lays them out: each tensor a storage of its own."""
    tensors: list[Tensor] = []
    storages: list[int] = []
    for index, (tensor, shape) in enumerate(shapes(name, size)):
        stride, step = list[int](), 1
        for extent in reversed(shape):
            stride.insert(0, step)
            step *= extent
        tensors.append(Tensor(tensor, "bfloat16", shape, tuple(stride), index, 0))
        storages.append(step * BYTES)
    sized = Layout(tuple(tensors), tuple(storages), 1)
    return Layout(sized.tensors, sized.storages, chunk_bytes_for(sized.nbytes))


def fill(arena: Arena, seed: int) -> None:
    """Random bytes, made on the device."""
    device = torch.device(arena.device)
    generator = torch.Generator(device).manual_seed(seed)
    for _, piece in arena.resident(Span(0, arena.layout.nbytes)):
        piece.random_(generator=generator)
    settle(device)


def poison(arena: Arena) -> None:
    """Bytes that are right nowhere, so that a transfer that writes nothing is seen."""
    for _, piece in arena.resident(Span(0, arena.layout.nbytes)):
        piece.fill_(0xA5)
    settle(torch.device(arena.device))
