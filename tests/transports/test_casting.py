"""Casting as bytes are read: torch's own bits for every number, wherever it stands and however it is cut."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from coldstart.transports.casting import cast
from coldstart.transports.conversions import SIZES, Conversion, conversion

DTYPES = {name: getattr(torch, name) for name in SIZES}
TASKS = Path("/proc/self/task")
HALVES = ("float16", "bfloat16")
QUIET = {"float32": 0x7FC00000, "float16": 0x7E00, "bfloat16": 0x7FC0}
CASTS = [Conversion(one, two) for one in SIZES for two in SIZES if one != two]
named = pytest.mark.parametrize("conversion", CASTS, ids=lambda each: f"{each.stored} to {each.carried}")


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({4: torch.int32, 2: torch.int16}[tensor.itemsize])


def cast_whole(numbers: torch.Tensor, conversion: Conversion, cuts: tuple[int, ...] = ()) -> torch.Tensor:
    """What becomes of ``numbers`` in views that end at ``cuts``, in bytes."""
    carried = bytearray(numbers.numel() * conversion.carried_size)
    edges = (0, *cuts, len(carried))
    views = [memoryview(carried)[one:two] for one, two in pairwise(edges)]
    cast(memoryview(bytearray(numbers.view(torch.uint8).numpy())), conversion, 0, views)
    return torch.frombuffer(carried, dtype=DTYPES[conversion.carried])


def patterns(dtype: str) -> torch.Tensor:
    """All there are in 16 bits; of float32 all that are near a border of a 16-bit type, and three million others."""
    if dtype in HALVES:
        return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(DTYPES[dtype])
    borders = [patterns(each).to(torch.float32) for each in HALVES]  # whatever can come out, infinities and all
    between = [(each.double()[:-1] + each.double()[1:]).div(2).float() for each in borders]  # ties
    seeded = torch.Generator().manual_seed(0)
    random = torch.randint(-(2**31), 2**31, (3_000_000,), dtype=torch.int64, generator=seeded).to(torch.int32)
    subnormal = torch.arange(0, 2**23, 7, dtype=torch.int32)
    exact = torch.cat([bits(each) for each in (*borders, *between)])
    near = torch.cat([exact + step for step in (-1, 0, 1)])
    return torch.cat([near, random, subnormal, subnormal | -(2**31)]).view(torch.float32)


@named
def test_every_number_becomes_what_torch_makes_of_it(conversion: Conversion) -> None:
    numbers = patterns(conversion.stored)
    made, expected = cast_whole(numbers, conversion), numbers.to(DTYPES[conversion.carried])
    assert torch.equal(made.isnan(), expected.isnan())
    right = ~expected.isnan()
    assert right.sum() > numbers.numel() // 2
    assert torch.equal(bits(made)[right], bits(expected)[right])
    if conversion == Conversion("bfloat16", "float32"):
        assert torch.equal(bits(made), bits(expected)), "not even a payload is lost"
    else:
        assert set(bits(made)[~right].tolist()) == {QUIET[conversion.carried]}


@named
def test_a_number_is_the_same_wherever_it_stands_and_however_it_is_cut(conversion: Conversion) -> None:
    """Torch's own not-a-number is another one at the end of a tensor than before: digests must not depend on it."""
    numbers = patterns(conversion.stored)[-65_536:]
    numbers[::1000] = torch.nan
    whole = cast_whole(numbers, conversion)
    size = conversion.carried_size
    cut = cast_whole(numbers, conversion, (1, 2, 3, 31, 4096, 65_537, 65_536 * size - 1))
    assert torch.equal(bits(cut), bits(whole))
    for at in (0, 1000, 33_000, 65_000):  # one by one
        assert torch.equal(bits(cast_whole(numbers[at : at + 1], conversion)), bits(whole[at : at + 1]))
    carried = whole.view(torch.uint8).numpy().tobytes()
    for skipped in range(1, size):
        part = bytearray(4097)
        stored = numbers.view(torch.uint8).numpy().tobytes()[: conversion.stored_length(skipped, len(part))]
        cast(memoryview(bytearray(stored)), conversion, skipped, [memoryview(part)])
        assert part == carried[skipped : skipped + len(part)]


@pytest.mark.skipif(not TASKS.is_dir(), reason="counts the threads of this process in /proc")
@named
def test_torch_starts_no_threads_of_its_own(conversion: Conversion) -> None:
    """Readers cast for themselves: four of them must not start four times as many threads as there are cores."""
    numbers = torch.zeros(1_000_000, dtype=DTYPES[conversion.stored])
    started: list[int] = []

    def read() -> None:
        torch.set_num_threads(4)
        before = len(list(TASKS.iterdir()))
        cast_whole(numbers, conversion)
        started.append(len(list(TASKS.iterdir())) - before)

    allowed = torch.get_num_threads()
    try:
        reader = threading.Thread(target=read)  # a new one: torch's threads are kept by the one that needed them
        reader.start()
        reader.join()
    finally:
        torch.set_num_threads(allowed)
    assert started == [0]


def test_only_the_usual_dtypes_are_cast() -> None:
    assert conversion("float32", "float32") is None
    assert conversion("float64", "float32") is None
    assert conversion("bfloat16", "float8_e4m3fn") is None
    assert conversion("float32", "float16") == Conversion("float32", "float16")
