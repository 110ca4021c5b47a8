"""Storages in ranges of stored tensors: they tile it, and whatever is asked for, just its bytes are read."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coldstart.layout import Layout, Span
from coldstart.layout import merged as merged_spans
from coldstart.ports import Cast, Checkpoint, StoredAs, StoredRange, StoredTensor
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transport_contract import Landings
from coldstart.transports import storage
from coldstart.transports.conversions import SIZES
from coldstart.transports.placement import Placement, Unplaced, place
from coldstart.transports.reads import READ_BYTES, Read, joined, planned
from coldstart.transports.storage import StorageTransport
from coldstart.transports.unlent import reads_for

HEADER = 100
CHUNK = 256


@dataclass(frozen=True)
class Merged:
    """A layout whose storages are made of ranges, the files that those are in, and what is to come of it."""

    layout: Layout
    names: Mapping[str, StoredAs]
    checkpoint: Checkpoint
    files: Mapping[Path, bytes]
    expected: Sequence[bytes]

    @property
    def placement(self) -> Placement:
        found = place(self.layout, self.names, self.checkpoint)
        assert isinstance(found, Placement), found
        return found


def merged(sizes: Sequence[int], files: int, storages: Sequence[Sequence[tuple[int, int, int]]]) -> Merged:
    """Stored tensors of ``sizes`` bytes in turn in ``files`` files; each storage in (tensor, offset, length)."""
    paths = [Path(f"part-{index}") for index in range(files)]
    contents = {path: bytearray(HEADER) for path in paths}
    tensors: dict[str, StoredTensor] = {}
    for index, size in enumerate(sizes):
        path = paths[index % files]
        tensors[f"t{index}"] = StoredTensor(f"t{index}", "uint8", (size,), path, len(contents[path]), size)
        contents[path].extend(random.Random(index).randbytes(size))
    starts = {name: (each.file, each.offset) for name, each in tensors.items()}
    expected = [
        b"".join(
            bytes(contents[file][at + offset : at + offset + length])
            for index, offset, length in ranges
            for file, at in [starts[f"t{index}"]]
        )
        for ranges in storages
    ]
    return Merged(
        layout_of(*map(len, expected), chunk_bytes=CHUNK),
        {f"t{at}": tuple(StoredRange(f"t{i}", o, n) for i, o, n in ranges) for at, ranges in enumerate(storages)},
        Checkpoint(path=Path("."), fingerprint="", files=tuple(paths), tensors=tensors),
        {path: bytes(content) for path, content in contents.items()},
        expected,
    )


@st.composite
def cases(draw: st.DrawFn) -> Merged:
    sizes = draw(st.lists(st.integers(1, 150), min_size=1, max_size=6))

    @st.composite
    def ranges(draw: st.DrawFn) -> tuple[int, int, int]:
        index = draw(st.integers(0, len(sizes) - 1))
        offset = draw(st.integers(0, sizes[index] - 1))
        return index, offset, draw(st.integers(1, sizes[index] - offset))

    whole = st.integers(0, len(sizes) - 1).map(lambda index: (index, 0, sizes[index]))
    storages = draw(st.lists(st.lists(ranges() | whole, min_size=1, max_size=5), min_size=1, max_size=3))
    return merged(sizes, draw(st.integers(1, 3)), storages)


@settings(max_examples=60)
@given(cases())
def test_extents_tile_every_storage(case: Merged) -> None:
    for nbytes, extents in zip(case.layout.storages, case.placement.storages, strict=True):
        assert extents[0].within == 0
        assert all(last.within + last.length == extent.within for last, extent in pairwise(extents))
        assert extents[-1].within + extents[-1].length == nbytes
        assert not any(
            (last.file, last.offset + last.length) == (extent.file, extent.offset) for last, extent in pairwise(extents)
        ), "two that touch in a file are one"


@settings(max_examples=60)
@given(cases(), st.data(), st.integers(1, 300))
def test_any_chunks_are_read_by_just_their_bytes(case: Merged, data: st.DataObject, most: int) -> None:
    chosen = data.draw(st.sets(st.integers(0, case.layout.chunks - 1)))
    spans = [case.layout.chunk(index) for index in sorted(chosen)]
    target, expected = BytesMemory(case.layout), BytesMemory(case.layout)
    reads = reads_for(spans, case.placement, target, Landings(), most)
    pieces = [piece for span in spans for piece in case.layout.pieces(span)]
    assert all(0 < read.length <= most for read in reads)
    assert sum(read.length for read in reads) == sum(piece.length for piece in pieces)
    for read in reads:
        write(read, case, target)
    for piece in pieces:
        part = slice(piece.within, piece.within + piece.length)
        expected.storages[piece.storage][part] = case.expected[piece.storage][part]
    assert target.storages == expected.storages
    for span in spans:  # what lands is what was asked for, padding and all
        landed = [read.landed for read in planned(case.layout.pieces(span), span, case.placement, most)]
        assert not landed or (landed[0].offset, landed[-1].end) == (span.offset, span.end)
        assert all(one.end == two.offset for one, two in pairwise(landed))


@settings(max_examples=60)
@given(cases(), st.integers(1, 300))
def test_requests_to_a_store_bring_each_read_once(case: Merged, most: int) -> None:
    whole = Span(0, case.layout.nbytes)
    reads = reads_for([whole], case.placement, BytesMemory(case.layout), Landings(), most)
    requests = joined(reads, most)
    assert Counter(read for request in requests for read in request.reads) == Counter(reads)
    for request in requests:
        assert request.length <= most
        at = request.offset
        for read in request.reads:
            assert (read.file, read.offset) == (request.file, at)
            at += read.length
        assert at == request.offset + request.length


def write(read: Read, case: Merged, target: BytesMemory) -> None:
    """What a transport does with one read."""
    at = read.offset
    for piece in read.pieces:
        content = case.files[read.file][at : at + piece.length]
        target.storages[piece.storage][piece.within : piece.within + piece.length] = content
        at += piece.length


EXPERTS, ROWS = 4, 400
"""Of one layer: each expert's ``gate`` and ``up`` become the rows of one tensor, as mixtures of experts are merged."""


async def test_missing_chunks_are_read_from_the_experts_own_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates, ups = range(0, 2 * EXPERTS, 2), range(1, 2 * EXPERTS, 2)
    case = merged(
        [ROWS] * 2 * EXPERTS, 3, [[(i, 0, ROWS) for pair in zip(gates, ups, strict=True) for i in pair]]
    )
    monkeypatch.chdir(tmp_path)
    for path, content in case.files.items():
        path.write_bytes(content)
    counted: list[int] = []
    preadv = os.preadv

    def counting(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        counted.append(preadv(descriptor, buffers, offset))
        return counted[-1]

    monkeypatch.setattr(os, "preadv", counting)
    target = BytesMemory(case.layout)
    missing = [case.layout.chunk(index) for index in (1, 4, 5)]
    await StorageTransport(case.checkpoint, case.placement).pull(b"", missing, target, Landings())
    assert sum(counted) == sum(span.length for span in missing)
    for span in missing:
        assert target.content(span) == case.expected[0][span.offset : span.end]


NUMBERS = 700
CASTS = [(one, two) for one in SIZES for two in SIZES if one != two]


@dataclass(frozen=True)
class Converted:
    """A tensor that is made of ranges of two stored ones in another dtype, and the bytes that torch makes of them."""

    layout: Layout
    stored_as: Cast
    checkpoint: Checkpoint
    carried: bytes


def converted(place_in: Path, stored: str, carried: str) -> Converted:
    """Of ``up`` and ``gate``, in two files after other bytes, the halves in turn; of any size, and with subnormals."""
    torch.manual_seed(0)
    values = torch.randn(2, NUMBERS) * torch.logspace(-30, 9, NUMBERS)
    names, tensors = ("up", "gate"), dict[str, StoredTensor]()
    nbytes = NUMBERS * SIZES[stored]
    for name, numbers in zip(names, values.to(getattr(torch, stored)), strict=True):
        path = place_in / f"{name}.safetensors"
        path.write_bytes(bytes(HEADER) + numbers.view(torch.uint8).numpy().tobytes())
        tensors[name] = StoredTensor(name, stored, (NUMBERS,), path, HEADER, nbytes)
    (uint8,) = layout_of(1).tensors
    tensor = msgspec.structs.replace(uint8, name="router", dtype=carried, shape=(2 * NUMBERS,))
    layout = Layout(tensors=(tensor,), storages=(2 * NUMBERS * SIZES[carried],), chunk_bytes=CHUNK)
    ranges = [StoredRange(name, half * nbytes // 2, nbytes // 2) for half in range(2) for name in names]
    turned = values.view(2, 2, -1).transpose(0, 1).reshape(-1).to(getattr(torch, stored)).to(getattr(torch, carried))
    checkpoint = Checkpoint(path=place_in, fingerprint="", files=(), tensors=tensors)
    return Converted(layout, Cast(tuple(ranges)), checkpoint, turned.view(torch.uint8).numpy().tobytes())


@pytest.mark.parametrize(("stored", "carried"), CASTS)
@pytest.mark.parametrize("span", [(0, 0), (256, 512), (1024, 4), (5, 1), (3, 1018), (1023, 7), (1399, 3)])
@pytest.mark.parametrize("most", [READ_BYTES, 64, 6, 1])
async def test_what_is_stored_in_another_dtype_is_cast_in_any_span(
    stored: str, carried: str, span: tuple[int, int], most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = converted(tmp_path, stored, carried)
    placement = place(case.layout, {"router": case.stored_as}, case.checkpoint)
    assert isinstance(placement, Placement), placement
    monkeypatch.setattr(storage, "READ_BYTES", most)
    start, end = span[0], sum(span) or case.layout.storages[0]
    wanted = Span(start, end - start)
    target, landings = BytesMemory(case.layout, fill=7), Landings()
    reads = reads_for([wanted], placement, target, Landings(), most)
    assert max(each.length for each in reads) <= max(most, 2 * SIZES[stored]), "memory is bounded by the stored bytes"
    numbers = -(-end // SIZES[carried]) - start // SIZES[carried]
    assert sum(each.length for each in reads) == numbers * SIZES[stored], "no number is read that is not wanted"
    await StorageTransport(case.checkpoint, placement).pull(b"", [wanted], target, landings)
    assert target.storages[0][start:end] == case.carried[start:end]
    assert set(target.storages[0][:start] + target.storages[0][end:]) <= {7}
    assert merged_spans(landings.spans) == (wanted,)


def test_halves_that_follow_each_other_in_a_file_are_one_extent(tmp_path: Path) -> None:
    case = converted(tmp_path, "float32", "bfloat16")
    ranges = [StoredRange(name, at, NUMBERS) for name in ("up", "gate") for at in range(0, 4 * NUMBERS, NUMBERS)]
    placement = place(case.layout, {"router": Cast(tuple(ranges))}, case.checkpoint)
    assert isinstance(placement, Placement)
    assert [each.length for each in placement.storages[0]] == [2 * NUMBERS, 2 * NUMBERS]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": "float8_e4m3fn"}, "router: float32 here, float8_e4m3fn in the checkpoint"),
        ({"dtype": "float64"}, "router: float32 here, float64 in the checkpoint"),
        ({"shape": (NUMBERS - 1,)}, rf"router: shape [{NUMBERS}] here, [{NUMBERS - 1}] in the checkpoint"),
        ({"nbytes": 2 * NUMBERS - 2}, f"router: fills {4 * NUMBERS - 4} bytes from 0 on of a storage of {4 * NUMBERS}"),
    ],
)
def test_only_the_same_numbers_are_cast(change: dict[str, object], words: str, tmp_path: Path) -> None:
    case = converted(tmp_path, "float16", "float32")
    (tensor,) = case.layout.tensors
    tensor = msgspec.structs.replace(tensor, shape=(NUMBERS,))
    layout = Layout(tensors=(tensor,), storages=(4 * NUMBERS,), chunk_bytes=CHUNK)
    stored = msgspec.structs.replace(case.checkpoint.tensors["up"], **change)
    other = msgspec.structs.replace(case.checkpoint, tensors={"up": stored})
    found = place(layout, {"router": Cast("up")}, other)
    assert isinstance(found, Unplaced)
    assert found.reason == words
    assert isinstance(place(layout, {"router": Cast("up")}, case.checkpoint), Placement)
    found = place(layout, {"router": "up"}, case.checkpoint)  # nobody said that it may be
    assert isinstance(found, Unplaced)
    assert found.reason == "router: float32 here, float16 in the checkpoint"


def test_ranges_that_are_cast_hold_whole_numbers(tmp_path: Path) -> None:
    case = converted(tmp_path, "float16", "float32")
    whole = 2 * NUMBERS
    for offset, length in ((1, whole - 2), (0, whole - 1)):
        stored_as = Cast((StoredRange("up", offset, length), StoredRange("gate", 0, whole)))
        found = place(case.layout, {"router": stored_as}, case.checkpoint)
        assert isinstance(found, Unplaced)
        assert found.reason == f"router: {length} bytes from {offset} on are no whole numbers of up"


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ([("x", 0, 24)], "a: the checkpoint has no tensor x"),
        ([("t0", 0, 8), ("half", 0, 16)], "a: uint8 here, float16 in the checkpoint"),
        ([("t0", 0, 25)], "a: t0 has no 25 bytes from 0 on"),
        ([("t0", -1, 24)], "a: t0 has no 24 bytes from -1 on"),
        ([("t0", 0, 0), ("t0", 0, 24)], "a: t0 has no 0 bytes from 0 on"),
        ([("t0", 0, 20)], "a: fills 20 bytes from 0 on of a storage of 24"),
        ([], "a: fills 0 bytes from 0 on of a storage of 24"),
    ],
)
def test_ranges_that_do_not_fit_are_refused(ranges: list[tuple[str, int, int]], words: str) -> None:
    path = Path("model.safetensors")
    tensors = {
        "t0": StoredTensor("t0", "uint8", (24,), path, HEADER, 24),
        "half": StoredTensor("half", "float16", (8,), path, HEADER + 24, 16),
    }
    layout = layout_of(24)
    layout = msgspec.structs.replace(layout, tensors=(msgspec.structs.replace(layout.tensors[0], name="a"),))
    checkpoint = Checkpoint(path=path, fingerprint="", files=(path,), tensors=tensors)
    found = place(layout, {"a": tuple(StoredRange(*each) for each in ranges)}, checkpoint)
    assert isinstance(found, Unplaced)
    assert found.reason == words


def test_tied_tensors_may_be_merged_only_of_the_same() -> None:
    case = merged([16, 16], 1, [[(0, 0, 16), (1, 0, 16)]])
    one = case.layout.tensors[0]
    tied = msgspec.structs.replace(case.layout, tensors=(one, msgspec.structs.replace(one, name="tied")))
    same = dict(case.names, tied=case.names["t0"])
    assert place(tied, same, case.checkpoint) == case.placement
    swapped = dict(case.names, tied=(StoredRange("t1", 0, 16), StoredRange("t0", 0, 16)))
    found = place(tied, swapped, case.checkpoint)
    assert isinstance(found, Unplaced)
    assert "stored several times (t0 and others, t1 and others)" in found.reason
