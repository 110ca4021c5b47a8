"""The digesters of the project pass their suite, on every memory; digests that are too weak fail it, where they are."""

from __future__ import annotations

import hashlib
import itertools
import zlib
from array import array
from collections.abc import Callable, Iterator
from functools import reduce
from operator import xor
from pathlib import Path

import pytest
import torch

from coldstart.arena import Arena
from coldstart.layout import Layout, Span
from coldstart.ports import Digester, Memory
from coldstart.testing.digester_contract import DigesterContract


class TestChunkDigester(DigesterContract):
    target = "coldstart.digest:ChunkDigester"


class TestChunkDigesterOnAnArena(DigesterContract):
    """Whose padding holds anything."""

    target = "coldstart.digest:ChunkDigester"
    device = "cpu"

    def memory(self, layout: Layout, stream: bytes) -> Memory:
        arena = Arena(layout, self.device)
        with arena.writing(Span(0, layout.nbytes)) as views:
            for view in views:
                view[:] = b"\xa5" * len(view)
        for piece in layout.pieces(Span(0, layout.nbytes)):
            with arena.writing(Span(piece.offset, piece.length)) as views:
                views[0][:] = stream[piece.offset : piece.offset + piece.length]
        return arena


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestChunkDigesterOnADevice(TestChunkDigesterOnAnArena):
    device = "cuda:0"


class TestHashDigester(DigesterContract):
    target = "coldstart.testing.harness:HashDigester"


# ------------------------------------------------------------------------------- digests that are not


class Weak:
    """A digester of the joined bytes, by any function."""

    algorithm = "weak"

    def __init__(self, function: Callable[[bytes], object]) -> None:
        self.function = function

    def digest(self, memory: Memory, span: Span) -> bytes:
        with memory.reading(span) as views:
            return sealed(self.function(b"".join(views)))


class PerView(Weak):
    """Depends on how the memory is cut."""

    def digest(self, memory: Memory, span: Span) -> bytes:
        with memory.reading(span) as views:
            return sealed([bytes(view) for view in views])


class WithoutPadding(Weak):
    """Hashes what the storages hold, and nothing between them."""

    def digest(self, memory: Memory, span: Span) -> bytes:
        seen = b""
        for piece in memory.layout.pieces(span):
            with memory.reading(Span(piece.offset, piece.length)) as views:
                seen += b"".join(views)
        return sealed(seen)


class Keeping(Weak):
    """Has views in its hands after it has returned."""

    def digest(self, memory: Memory, span: Span) -> bytes:
        with memory.reading(span) as views:
            self.kept = list(views)
            return sealed(b"".join(views))


class Normalising(Weak):
    """Writes: it makes the memory fit the digest."""

    def digest(self, memory: Memory, span: Span) -> bytes:
        with memory.writing(span) as views:
            if span.length > 100_000:
                views[0][0] = 0
            return sealed(b"".join(views))


class Counting(Weak):
    """Another value each time."""

    calls = 0

    def digest(self, memory: Memory, span: Span) -> bytes:
        self.calls += 1
        return sealed((self.calls, super().digest(memory, span)))


class Hopeful(Weak):
    """Takes memory that cannot be read for empty."""

    def digest(self, memory: Memory, span: Span) -> bytes:
        try:
            return super().digest(memory, span)
        except OSError:
            return sealed(b"")


def sealed(value: object) -> bytes:
    return hashlib.blake2b(repr(value).encode(), digest_size=16).digest()


def words(data: bytes, code: str) -> array[int]:
    """``data`` as words; what is left over is filled up with zeros."""
    numbers = array(code)
    numbers.frombytes(data + bytes(-len(data) % numbers.itemsize))
    return numbers


WEAK: dict[str, tuple[Callable[[], Digester], set[str]]] = {
    "sum of bytes": (lambda: Weak(sum), {"words swapped", "pages swapped", "+d and -d", "every place", "every bit"}),
    "sum of words": (
        lambda: Weak(lambda data: sum(words(data, "I")) % 2**32),
        {"words swapped", "doubles swapped", "two high bits of 32", "+d and -d", "length"},
    ),
    "xor of 64-bit words": (
        lambda: Weak(lambda data: reduce(xor, words(data, "Q"), 0)),
        {"doubles swapped", "pages swapped", "two high bits of 64", "length"},
    ),
    "a sample": (
        lambda: Weak(lambda data: (len(data), data[:: len(data) // 100 + 1])),
        {"one bit", "a line of zeros", "tail lost", "last byte"},
    ),
    "the first half": (lambda: Weak(lambda data: (len(data), data[: len(data) // 2])), {"tail lost", "last byte"}),
    "whole words only": (lambda: Weak(lambda data: data[: len(data) // 4 * 4]), {"last byte", "every bit", "length"}),
    "rows in any order": (
        lambda: Weak(lambda data: sorted(data[at : at + 262_144] for at in range(0, len(data), 262_144))),
        {"256 KiB swapped"},
    ),
    "zeros at the end": (lambda: Weak(lambda data: data.rstrip(b"\0")), {"length"}),
    "32 bits of it": (lambda: ShortSealed(zlib.crc32), {"16 bytes"}),
    "per view": (lambda: PerView(bytes), {"views are cut", "storages and padding"}),
    "without padding": (lambda: WithoutPadding(bytes), {"storages and padding"}),
    "keeping": (lambda: Keeping(bytes), {"nothing is held"}),
    "writing": (lambda: Normalising(bytes), {"only read"}),
    "counting": (lambda: Counting(bytes), {"no state"}),
    "hopeful": (lambda: Hopeful(bytes), {"cannot be read"}),
}
"""Each with parts of the names of what finds it."""


class ShortSealed(Weak):
    def digest(self, memory: Memory, span: Span) -> bytes:
        return super().digest(memory, span)[:4]


class Suite(DigesterContract):
    __test__ = False

    def __init__(self, make: Callable[[], Digester]) -> None:
        self._make = make

    def open_digester(self) -> Digester:
        return self._make()


def finds(suite: DigesterContract, part: str) -> bool:
    """Whether ``suite`` fails a test whose name, in words and with its parameters, contains ``part``."""
    for name in dir(suite):
        if not name.startswith("test_"):
            continue
        test = getattr(suite, name)
        for chosen in combinations(getattr(test, "pytestmark", [])):
            if part not in " ".join([name.replace("_", " "), *map(str, chosen.values())]):
                continue
            try:
                test(**chosen)
            except (AssertionError, pytest.fail.Exception):
                return True
    return False


def combinations(marks: list[pytest.Mark]) -> Iterator[dict[str, object]]:
    names, values = [mark.args[0] for mark in marks], [mark.args[1] for mark in marks]
    for chosen in itertools.product(*values):
        yield dict(zip(names, chosen, strict=True))


@pytest.mark.parametrize("weak", WEAK)
def test_a_weak_digester_fails_where_it_is_weak(weak: str) -> None:
    make, expected = WEAK[weak]
    assert not {part for part in expected if not finds(Suite(make), part)}


@pytest.mark.parametrize("part", sorted(set().union(*(expected for _, expected in WEAK.values()))))
def test_a_good_one_does_not(part: str) -> None:
    assert not finds(Suite(lambda: Weak(bytes)), part)


def test_a_digester_that_hangs_on_the_hash_seed_fails_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "seeded.py").write_text(
        """
class Seeded:
    algorithm = "seeded"
    def digest(self, memory, span):
        with memory.reading(span) as views:
            return (hash(b"".join(views)) % 2**128).to_bytes(16, "little")
"""
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    class Seeded(Suite):
        target = "seeded:Seeded"

        def __init__(self) -> None:
            super().__init__(super(Suite, self).open_digester)

    suite = Seeded()
    suite.test_a_digest_is_16_bytes(1000)
    with pytest.raises(AssertionError):
        suite.test_another_process_makes_no_difference()
