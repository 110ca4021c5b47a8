"""The digest: fixed vectors, one value on every path, and no structured error that it misses."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coldstart import csfp1, digest, rowsums
from coldstart.arena import Arena
from coldstart.digest import ChunkDigester
from coldstart.errors import IntegrityError
from coldstart.layout import Layout, Span, Tensor
from coldstart.ports import BatchDigester, Digester, Region

ROW = csfp1.ROW_BYTES
MASK = (1 << 64) - 1


# -------------------------------------------------------------------- the definition, again


def reference(data: bytes) -> bytes:
    """CSFP-1 in plain Python, from the definition and not from the code under test."""
    table = hashlib.shake_128(b"csfp1").digest(8 * 2 * 65_537)
    numbers = [int.from_bytes(table[at : at + 8], "little") for at in range(0, len(table), 8)]
    keys, seeds = [number | 1 for number in numbers[: 2 * 65_536]], numbers[2 * 65_536 :]
    gold = 0x9E3779B97F4A7C15

    def mix(x: int) -> int:
        x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCD & MASK
        x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53 & MASK
        return x ^ (x >> 33)

    padded = data + bytes(-len(data) % 4)
    words = [int.from_bytes(padded[at : at + 4], "little", signed=True) for at in range(0, len(padded), 4)]
    result = b""
    for lane in range(2):
        total = 0
        for row in range(-(-len(words) // 65_536)):
            part = words[row * 65_536 : (row + 1) * 65_536]
            y = sum(word * key for word, key in zip(part, keys[lane * 65_536 :], strict=False)) & MASK
            total += mix(y ^ mix(seeds[lane] + (row + 1) * gold & MASK))
        result += mix(total & MASK ^ mix(len(data) + lane + 1)).to_bytes(8, "little")
    return result


def noise(length: int, seed: int = 7) -> bytes:
    return np.random.default_rng(seed).bytes(length)


def of(data: bytes) -> bytes:
    (found,) = csfp1.finish(csfp1.sums_of_views([memoryview(data)], len(data)), [len(data)])
    return found


def by_torch(pieces: Sequence[tuple[int, bytes]], span: Span) -> bytes:
    tensors = [(offset, torch.frombuffer(bytearray(data), dtype=torch.uint8)) for offset, data in pieces if data]
    (found,) = csfp1.finish(rowsums.sums_on_device([(tensors, span)], torch.device("cpu")), [span.length])
    return found


class Lent:
    """Memory on ``device`` that lends exactly the views it was given."""

    layout = Layout((), (), ROW)

    def __init__(self, *views: bytes, device: str = "cpu") -> None:
        self.views = [memoryview(view) for view in views]
        self.device = device

    def regions(self, span: Span) -> Sequence[Region]:
        raise NotImplementedError

    @contextmanager
    def reading(self, span: Span) -> Iterator[Sequence[memoryview]]:
        yield self.views

    @contextmanager
    def writing(self, span: Span) -> Iterator[Sequence[memoryview]]:
        yield self.views


VECTORS = [
    (b"", "e21b2b8bc34a6e7da86ff69c5a1c002f"),
    (b"\0", "021226d8adfa146d3736b33e8bb453e3"),
    (b"coldstart", "c83be75978a99ff7c4a556d497cd86e7"),
    (bytes(range(256)) * 1024, "8cffb0ce87024c6963a8b57203976046"),
    (bytes(range(251)) * 3000, "ad30f9561758ca46cd76141dbc9c7a67"),
    (b"\xff" * (ROW + 1), "446b21f374f1c9e6eedb909fc2c0d648"),
]


@pytest.mark.parametrize(("data", "expected"), VECTORS, ids=["empty", "zero", "short", "row", "rows", "poison"])
def test_vectors(data: bytes, expected: str) -> None:
    assert reference(data).hex() == expected
    assert of(data).hex() == expected
    assert by_torch([(0, data)], Span(0, len(data))).hex() == expected


def test_is_a_digester_of_memory() -> None:
    digester: Digester = ChunkDigester()
    ChunkDigester().prepare("cpu")
    assert digester.algorithm == "csfp1"
    assert digester.digest(Lent(b"cold", b"start"), Span(0, 9)) == of(b"coldstart")
    assert digester.digest(Lent(b"coldstart", device="cuda:0"), Span(0, 9)) == of(b"coldstart")


def test_memory_that_lends_too_little_is_an_error() -> None:
    with pytest.raises(IntegrityError, match="lent 4 bytes for the 9 bytes at 0"):
        ChunkDigester().digest(Lent(b"cold"), Span(0, 9))


@pytest.mark.parametrize("length", [*range(70), 1000, ROW - 4, ROW - 1, ROW, ROW + 1, 2 * ROW + 3])
def test_paths_agree(length: int) -> None:
    data = noise(length, seed=length)
    expected = reference(data)
    assert of(data) == expected
    assert by_torch([(0, data)], Span(0, length)) == expected


def test_paths_agree_over_several_device_batches() -> None:
    length = (rowsums.OPERATOR_ROWS + 2) * ROW + 5
    data = noise(length)
    assert by_torch([(0, data)], Span(0, length)) == of(data)
    assert by_torch([(0, data[:12345]), (12345, data[12345:])], Span(0, length)) == of(data)


def test_value_depends_on_the_span_not_on_where_it_lies() -> None:
    data = noise(3 * ROW)
    for start in (0, 1, 2, 3, 4, 256, ROW - 1, ROW):
        part = data[start : start + ROW + 77]
        assert by_torch([(0, data)], Span(start, ROW + 77)) == of(part)


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(0, 3 * ROW),
    cuts=st.lists(st.integers(0, 3 * ROW), max_size=8),
    start=st.integers(0, 1000),
)
def test_any_split_gives_the_same_value(length: int, cuts: list[int], start: int) -> None:
    data = noise(length)
    edges = sorted({0, length, *(cut for cut in cuts if cut < length)})
    parts = [(low, data[low:high]) for low, high in pairwise(edges)]
    expected = of(data)
    assert ChunkDigester().digest(Lent(*(part for _, part in parts)), Span(start, length)) == expected
    moved = [(start + low, part) for low, part in parts]
    assert by_torch(moved, Span(start, length)) == expected


def test_gaps_count_as_zeros() -> None:
    data = bytearray(noise(2 * ROW))
    data[1000:2000] = bytes(1000)
    pieces = [(0, bytes(data[:1000])), (2000, bytes(data[2000:]))]
    assert by_torch(pieces, Span(0, len(data))) == of(bytes(data))


def arena_of(sizes: Sequence[int], device: str = "cpu") -> tuple[Arena, bytes]:
    """An arena of one tensor per size, with noise in it and between it; and its stream, where gaps are zeros."""
    layout = Layout(
        tuple(Tensor(f"t{i}", "uint8", (size,), (1,), i, 0) for i, size in enumerate(sizes)), tuple(sizes), 4 * ROW
    )
    arena = Arena(layout, device)
    whole = Span(0, layout.nbytes)
    with arena.writing(whole) as views:
        views[0][:] = noise(layout.nbytes, seed=99)
    stream = bytearray(layout.nbytes)
    for index, tensor in enumerate(layout.tensors):
        data = noise(sizes[index], seed=index)
        arena.view(tensor).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        stream[layout.starts[index] : layout.starts[index] + sizes[index]] = data
    return arena, bytes(stream)


def on_device(arena: Arena, *spans: Span) -> Sequence[bytes]:
    """The digests by the way that devices go, on the CPU."""
    parts = [(arena.resident(span), span) for span in spans]
    return csfp1.finish(rowsums.sums_on_device(parts, torch.device("cpu")), [span.length for span in spans])


SIZES = {
    "odd": (5, 1, 300, ROW + 3, 2, 256),
    "scales": (3 * ROW + 512, 4, 4, 2, 6 * ROW, 4, 1, ROW),
    "scalars": (4,) * 2048,
    "bytes": tuple(range(1, 2000)),
    "without gaps": (ROW, 256, 1024, 9 * ROW),
    "ends at a row": (ROW - 128, 7 * ROW - 3, ROW),
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_what_lies_between_storages_does_not_count(sizes: Sequence[int]) -> None:
    arena, stream = arena_of(sizes)
    whole, end = arena.layout.nbytes, arena.layout.nbytes - 200
    chunks = [arena.layout.chunk(chunk) for chunk in range(arena.layout.chunks)]
    odd = Span(3, min(whole - 3, 400)), Span(250, whole - 250), Span(4, 1), Span(end, 200)
    for span in (Span(0, whole), *chunks, *odd):
        expected = of(stream[span.offset : span.end])
        assert ChunkDigester().digest(arena, span) == expected
        assert on_device(arena, span) == [expected]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.one_of(st.integers(1, 2000), st.integers(1, 2 * ROW)), min_size=1, max_size=12),
    data=st.data(),
)
def test_any_layout_gives_the_same_value(sizes: list[int], data: st.DataObject) -> None:
    arena, stream = arena_of(sizes)
    start = data.draw(st.integers(0, len(stream)))
    length = data.draw(st.integers(0, len(stream) - start))
    assert on_device(arena, Span(start, length)) == [of(stream[start : start + length])]


def test_rows_with_small_gaps_are_hashed_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales beside weights, as quantised checkpoints have them: copying their rows took longer than the transfer."""
    arena, stream = arena_of((3 * ROW, 4, 4, 5 * ROW - 512 - 2, 7, 251, 4 * ROW - 1024, 255))
    copied: list[Span] = []
    put_together = rowsums._put_together

    def watched(
        pieces: Sequence[rowsums.Piece], span: Span, rows: Span, device: torch.device
    ) -> torch.Tensor:
        copied.append(rows)
        return put_together(pieces, span, rows, device)

    monkeypatch.setattr(rowsums, "_put_together", watched)
    assert on_device(arena, Span(0, len(stream))) == [of(stream)]
    assert sum(rows.length for rows in copied) <= 1  # the last row, which is short


def test_many_spans_in_one_call() -> None:
    arena, stream = arena_of(SIZES["scales"])
    digester = ChunkDigester()
    assert isinstance(digester, BatchDigester)
    chunks = [arena.layout.chunk(chunk) for chunk in range(arena.layout.chunks)]
    odd = [Span(0, 0), Span(len(stream), 0), Span(5, ROW), Span(5 + ROW, 7), Span(5, ROW)]
    for spans in (chunks, chunks[::-1], chunks[::2], [*odd, *chunks], [], odd[:2]):
        expected = [of(stream[span.offset : span.end]) for span in spans]
        assert digester.digests(arena, spans) == expected
        assert digest._on_device(arena, spans, torch.device("cpu")) == expected


def test_memory_of_a_cpu_is_hashed_chunk_by_chunk() -> None:
    arena, _ = arena_of((ROW,))
    assert ChunkDigester().at_once(arena) == 1
    assert ChunkDigester().at_once(Lent(device="cuda:0")) == 1


def test_a_call_that_broke_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    arena, stream = arena_of((2 * ROW,))
    with monkeypatch.context() as broken:
        broken.setattr(rowsums, "keys_on", lambda device: torch.zeros(3, 5, dtype=torch.int64))
        with pytest.raises(RuntimeError, match="size of tensor"):
            on_device(arena, Span(0, 2 * ROW))
    assert on_device(arena, Span(0, 2 * ROW)) == [of(stream)]


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_the_kernel_in_tritons_interpreter() -> None:
    program = """
import torch
from coldstart import csfp1, digest, rowsums
words = torch.randint(-(2**31), 2**31, (5, csfp1.ROW_WORDS), dtype=torch.int32)
keys = torch.from_numpy(csfp1.KEYS.copy())
one, two = (torch.zeros((9, 2), dtype=torch.int64) for _ in range(2))
rowsums.by_operators(words, keys, one, 3)
rowsums.by_kernel(words, keys, two, 3)
assert torch.equal(one, two)
"""
    environ = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------------------- what it must find


def _flip_a_bit(data: bytearray, random: np.random.Generator) -> None:
    data[random.integers(len(data))] ^= 1 << int(random.integers(8))


def _swap(size: int) -> Callable[[bytearray, np.random.Generator], None]:
    def swap(data: bytearray, random: np.random.Generator) -> None:
        one, two = random.choice(len(data) // size, 2, replace=False) * size
        data[one : one + size], data[two : two + size] = data[two : two + size], data[one : one + size]

    return swap


def _shift(by: int) -> Callable[[bytearray, np.random.Generator], None]:
    def shift(data: bytearray, random: np.random.Generator) -> None:
        at = int(random.integers(len(data) // 2))
        data[at:] = bytes(by) + data[at:-by]

    return shift


def _zero(size: int) -> Callable[[bytearray, np.random.Generator], None]:
    def zero(data: bytearray, random: np.random.Generator) -> None:
        at = int(random.integers(len(data) // size)) * size
        data[at : at + size] = bytes(size)

    return zero


def _lose_the_tail(data: bytearray, random: np.random.Generator) -> None:
    size = int(random.integers(1, len(data) // 256))
    data[-size:] = bytes(size)


def _flip_high_bits_of_two(width: int) -> Callable[[bytearray, np.random.Generator], None]:
    def flip(data: bytearray, random: np.random.Generator) -> None:
        for word in random.choice(len(data) // width, 2, replace=False):
            data[int(word) * width + width - 1] ^= 0x80

    return flip


def _add_and_take(data: bytearray, random: np.random.Generator) -> None:
    words = np.frombuffer(data, "<i4")
    one, two = random.choice(words.size, 2, replace=False)
    difference = np.int32(random.integers(1, 1 << 20))
    with np.errstate(over="ignore"):
        words[one] += difference
        words[two] -= difference


def _reverse_rows(data: bytearray, random: np.random.Generator) -> None:
    rows = [data[at : at + ROW] for at in range(0, len(data), ROW)]
    data[:] = b"".join(rows[::-1])


ERRORS: dict[str, Callable[[bytearray, np.random.Generator], None]] = {
    "one bit": _flip_a_bit,
    "swap bytes": _swap(1),
    "swap words": _swap(4),
    "swap pages": _swap(4096),
    "swap rows": _swap(ROW),
    "shift a byte": _shift(1),
    "shift a word": _shift(4),
    "zero a line": _zero(64),
    "zero a page": _zero(4096),
    "tail lost": _lose_the_tail,
    "high bits of two 32-bit words": _flip_high_bits_of_two(4),
    "high bits of two 64-bit words": _flip_high_bits_of_two(8),
    "+d and -d": _add_and_take,
    "rows reversed": _reverse_rows,
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("kind", ["noise", "bf16"])
def test_no_structured_error_is_missed(error: str, kind: str) -> None:
    random = np.random.default_rng(11)
    if kind == "noise":
        clean = noise(2 * ROW + 4096)
    else:
        weights = torch.from_numpy(random.normal(0, 0.02, ROW + 2048)).to(torch.bfloat16)
        clean = weights.view(torch.uint8).numpy().tobytes()
    expected = of(clean)
    missed = 0
    for _ in range(40):
        damaged = bytearray(clean)
        ERRORS[error](damaged, random)
        missed += bytes(damaged) != clean and of(bytes(damaged)) == expected
    assert missed == 0


def test_length_counts() -> None:
    assert len({of(bytes(length)) for length in range(600)}) == 600


def test_no_two_high_bits_cancel_anywhere_in_a_row() -> None:
    # +-2**31 in two words cancels if the keys agree, or are opposite, modulo 2**33. Smaller bits need more.
    for lane in range(csfp1.LANES):
        keys = csfp1.KEYS[lane].view(np.uint64) & np.uint64(2**33 - 1)
        assert np.unique(keys).size == keys.size
        assert np.intersect1d(keys, np.uint64(2**33) - keys).size == 0
    assert np.all(csfp1.KEYS & 1)


def test_single_word_differences_never_vanish() -> None:
    # An odd key times anything from 1 to 2**32-1 is not 0 modulo 2**64, so this holds for all words.
    zero = of(bytes(64))
    seen = {zero}
    for bit in range(64 * 8):
        data = bytearray(64)
        data[bit // 8] = 1 << bit % 8
        seen.add(of(bytes(data)))
    assert len(seen) == 64 * 8 + 1
