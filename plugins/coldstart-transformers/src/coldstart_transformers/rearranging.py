"""Which stored bytes a converted weight is made of, where converting is nothing but putting them in another order.

The loader merges the experts of a layer, splits fused projections, and more. Which of its operations do what is not
repeated here: each is asked, by having it convert addresses instead of weights. A stored tensor's address tensor has
in each place a number that stands for that place; if all numbers come out whole, in the model's shape and row by row,
they say where every row is to be read. Whatever comes out otherwise (transposed, computed, cut within rows) is the
ordinary loader's affair. Rows are taken to be a few numbers long, so that this costs next to nothing; whether the
bytes found are of the right dtype and size is for ``place`` to say.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from coldstart.ports import Checkpoint, StoredRange, StoredTensor
from coldstart_transformers.naming import Conversion

MOST_RANGES = 200_000
"""Of one checkpoint, as many as it may have tensors; where rows are interleaved one by one there may be more."""

_WIDTH = 3
"""Numbers in a row of an address tensor: enough for a row that is turned round, halved or spread to be noticed."""

_FIRST = 2**40
"""The number of the first row: larger than any that an operation makes by itself."""

_WRONG_FOR_ADDRESSES = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""What an operation may raise that is made for weights only."""


_Kind = tuple[int, tuple[tuple[str, int], ...], tuple[tuple[tuple[int, ...], int], ...], tuple[int, ...] | None]
"""A converter, how many tensors it is given of each pattern, their shapes and sizes, and the shape of the result."""


class _Part(NamedTuple):
    """``length`` bytes from ``offset`` on of the stored tensor that has this place among those given."""

    source: int
    offset: int
    length: int


@dataclass(frozen=True)
class _Rows:
    """Stored tensors as rows: ``length`` elements each, of which an address tensor has ``width``.

    ``first`` has the number of each tensor's first row; between two tensors one number is left out.
    """

    tensors: Sequence[StoredTensor]
    counts: Sequence[int]
    first: Sequence[int]
    length: int
    width: int

    def addresses(self, index: int) -> torch.Tensor:
        start = self.first[index] * self.width
        shape = self.tensors[index].shape
        numbers = torch.arange(start, start + self.counts[index] * self.width, dtype=torch.int64)
        return numbers.view(shape if self.length == 1 else (*shape[:-1], self.width))

    def wanted(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape in addresses of a tensor of ``shape``; none at all if its rows are others."""
        if self.length == 1:
            return tuple(shape)
        return (*shape[:-1], self.width) if shape and shape[-1] == self.length else (-1,)


def rearranged(
    model: PreTrainedModel, conversions: Iterable[Conversion], checkpoint: Checkpoint
) -> Mapping[str, tuple[StoredRange, ...]] | None:
    """Each converted tensor of ``model`` in ranges of stored ones; None if one of them is anything else."""
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found: dict[str, tuple[StoredRange, ...]] = {}
    known: dict[_Kind, tuple[_Part, ...]] = {}
    total = 0
    for conversion in conversions:
        names = [name for sources in conversion.sources.values() for name in sources]
        kind = _kind(conversion, [checkpoint.tensors[name] for name in names], shapes)
        if kind in known:
            made = {conversion.target: known[kind]}
        else:
            with torch.device("cpu"):
                made = _followed(model, conversion, [checkpoint.tensors[name] for name in names], shapes)
            if made.keys() == {conversion.target}:
                known[kind] = made[conversion.target]
        total += sum(map(len, made.values()))
        if not made or total > MOST_RANGES:
            return None
        for target, parts in made.items():
            found[target] = tuple(StoredRange(names[part.source], part.offset, part.length) for part in parts)
    return found


def _kind(conversion: Conversion, tensors: Iterable[StoredTensor], shapes: Mapping[str, tuple[int, ...]]) -> _Kind:
    """What the layers of a model have in common, of which one is looked at for all."""
    counts = tuple((pattern, len(names)) for pattern, names in conversion.sources.items())
    stored = tuple((tensor.shape, tensor.nbytes) for tensor in tensors)
    return id(conversion.converter), counts, stored, shapes.get(conversion.target)


def _followed(
    model: PreTrainedModel,
    conversion: Conversion,
    tensors: Sequence[StoredTensor],
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, tuple[_Part, ...]]:
    """What one converter does, by the names of its results; nothing if it does more than rearrange rows."""
    rows = _rows(tensors)
    if rows is None:
        return {}
    try:
        plus, minus = (_made(model, conversion, rows, sign) for sign in (1, -1))
    except _WRONG_FOR_ADDRESSES:
        return {}
    parts: dict[str, tuple[_Part, ...]] = {}
    for name, result in plus.items():
        alike = name in minus and torch.equal(result, -minus[name])  # not so if it computes
        read = _read(result, rows, shapes.get(name, (-1,))) if alike else ()
        if not read:
            return {}
        parts[name] = read
    return parts


def _made(model: PreTrainedModel, conversion: Conversion, rows: _Rows, sign: int) -> dict[str, torch.Tensor]:
    """What the converter makes of addresses, or of their negatives."""
    places = iter(range(len(rows.tensors)))
    converter = copy.deepcopy(conversion.converter)
    for pattern, sources in conversion.sources.items():
        for name in sources:
            given: Future[torch.Tensor] = Future()
            given.set_result(rows.addresses(next(places)) * sign)
            converter.add_tensor(conversion.target, name, pattern, given)
    made = converter.convert(conversion.target, model=model, config=model.config)
    return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}


def _rows(tensors: Sequence[StoredTensor]) -> _Rows | None:
    """Stored tensors as rows of one length; None if they are not. Vectors, and short rows, are told by elements."""
    lengths = {tensor.shape[-1] if len(tensor.shape) > 1 else 1 for tensor in tensors}
    length = max(lengths, default=0)
    if length > _WIDTH and len(lengths) > 1:
        return None
    length, width = (length, _WIDTH) if length > _WIDTH else (1, 1)
    counts = [prod(tensor.shape) // length for tensor in tensors]
    if not counts or any(not count or tensor.nbytes % count for count, tensor in zip(counts, tensors, strict=True)):
        return None
    first = [_FIRST]
    for count in counts[:-1]:
        first.append(first[-1] + count + 1)
    return _Rows(tensors, counts, first, length, width)


def _read(result: torch.Tensor, rows: _Rows, shape: tuple[int, ...]) -> tuple[_Part, ...]:
    """The parts that a result's numbers stand for; none if they are not whole rows of what was given."""
    if result.dtype != torch.int64 or result.shape != rows.wanted(shape):
        return ()
    numbers = result.reshape(-1, rows.width)
    found = numbers[:, 0] // rows.width
    if not torch.equal(numbers, found[:, None] * rows.width + torch.arange(rows.width)):
        return ()
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), (found.diff() != 1).nonzero().flatten() + 1])
    counts = torch.cat([starts, torch.tensor([len(found)])]).diff()
    first = torch.tensor(rows.first)
    owners = torch.searchsorted(first, found[starts], right=True) - 1
    inside = found[starts] - first[owners]
    if len(owners) > MOST_RANGES or owners.min() < 0 or (inside + counts > torch.tensor(rows.counts)[owners]).any():
        return ()
    nbytes = [tensor.nbytes // count for tensor, count in zip(rows.tensors, rows.counts, strict=True)]
    return tuple(
        _Part(owner, row * nbytes[owner], count * nbytes[owner])
        for owner, row, count in zip(owners.tolist(), inside.tolist(), counts.tolist(), strict=True)
    )
