"""The suite that every digester must pass; a test file is one subclass.

    class TestMine(DigesterContract):
        target = "my_package.digest:MyDigester"    # called without arguments, here and in another process

Decides what "full coverage" means: every byte of a span counts, and so does its place; how the
memory happens to be cut does not. A digest that looks at a sample, adds without keys, or forgets
the tail fails. So does one that another process, thread or call does not repeat, because truth is
published by one worker and compared by all. It must not know an algorithm: whether damage is found
is tried with what goes wrong in transfers, and says nothing about forgers. Needs pytest.
"""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import weakref
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from os import pathsep
from pkgutil import resolve_name
from typing import ClassVar, NoReturn

import pytest

from coldstart import config
from coldstart.layout import Layout, Span
from coldstart.ports import Digester, Memory, Region
from coldstart.testing.memories import BytesMemory, layout_of

BYTES = 16
LENGTH = 2 * 256 * 1024 + 4096 + 3
"""Of what is damaged: more than a digester is likely to take in one go, and odd at the end."""

TRIES = 12
CHILD_SECONDS = 50

Damage = Callable[[bytearray, random.Random], None]


# ----------------------------------------------------------------------------------- what is hashed


def noise(length: int, seed: int = 7) -> bytes:
    return random.Random(seed).randbytes(length)


def weights(length: int) -> bytes:
    """bfloat16 numbers such as models hold: few different upper bytes, none of them large."""
    generator = random.Random(11)
    numbers = array("f", (generator.gauss(0, 0.02) for _ in range(16_384))).tobytes()
    halves = bytearray(len(numbers) // 2)
    halves[0::2], halves[1::2] = numbers[2::4], numbers[3::4]
    return (bytes(halves) * (length // len(halves) + 1))[:length]


CONTENTS: Mapping[str, bytes] = {
    "noise": noise(LENGTH),
    "weights": weights(LENGTH),
    "zeros": bytes(LENGTH),
    "poison": b"\xff" * LENGTH,
}

UNEVEN = (300, 1, 256, 700, 5000, 3)
"""Sizes of storages with padding between them; none is like another."""

SPANS = (Span(0, 7168), Span(3, 400), Span(301, 200), Span(250, 6900), Span(255, 2), Span(7000, 0), Span(6914, 1))
"""Of a stream of :data:`UNEVEN` storages: whole, unaligned, inside padding, empty, one byte."""


# ------------------------------------------------------------------------------------------ damages


def flip_a_bit(data: bytearray, luck: random.Random) -> None:
    data[luck.randrange(len(data))] ^= 1 << luck.randrange(8)


def swap(size: int) -> Damage:
    """Two elements of ``size`` bytes change places."""

    def damage(data: bytearray, luck: random.Random) -> None:
        one, two = (at * size for at in luck.sample(range(len(data) // size), 2))
        data[one : one + size], data[two : two + size] = data[two : two + size], data[one : one + size]

    return damage


def shift(by: int) -> Damage:
    """From somewhere on, everything comes ``by`` bytes later."""

    def damage(data: bytearray, luck: random.Random) -> None:
        at = luck.randrange(len(data) // 2)
        data[at:] = bytes(by) + data[at:-by]

    return damage


def zero(size: int) -> Damage:
    """``size`` bytes never arrived."""

    def damage(data: bytearray, luck: random.Random) -> None:
        at = luck.randrange(len(data) // size) * size
        data[at : at + size] = bytes(size)

    return damage


def lose_the_tail(data: bytearray, luck: random.Random) -> None:
    size = luck.randrange(1, 2048)
    data[-size:] = bytes(size)


def change_the_last_byte(data: bytearray, luck: random.Random) -> None:
    data[-1] ^= luck.randrange(1, 256)


def flip_two_high_bits(width: int) -> Damage:
    """The highest bits of two words: in sums of words of that width, they cancel."""

    def damage(data: bytearray, luck: random.Random) -> None:
        for word in luck.sample(range(len(data) // width), 2):
            data[(word + 1) * width - 1] ^= 0x80

    return damage


def add_here_and_take_there(data: bytearray, luck: random.Random) -> None:
    words = memoryview(data)[: len(data) // 4 * 4].cast("I")
    one, two = luck.sample(range(len(words)), 2)
    difference = luck.randrange(1, 1 << 20)
    words[one], words[two] = (words[one] + difference) % 2**32, (words[two] - difference) % 2**32


DAMAGES: Mapping[str, Damage] = {
    "one bit": flip_a_bit,
    "bytes swapped": swap(1),
    "halves swapped": swap(2),
    "words swapped": swap(4),
    "doubles swapped": swap(8),
    "pages swapped": swap(4096),
    "256 KiB swapped": swap(256 * 1024),
    "a byte late": shift(1),
    "a word late": shift(4),
    "a storage late": shift(256),
    "a line of zeros": zero(64),
    "a page of zeros": zero(4096),
    "tail lost": lose_the_tail,
    "last byte": change_the_last_byte,
    "two high bits of 32": flip_two_high_bits(4),
    "two high bits of 64": flip_two_high_bits(8),
    "+d and -d": add_here_and_take_there,
}


# --------------------------------------------------------------------------------- watched memory


class Watched:
    """Memory that cuts what it lends, remembers it, and is for reading only.

    Args:
        inner: what is read.
        cuts: lengths of the views that it is lent in, over and over; empty ones among them.
    """

    def __init__(self, inner: Memory, cuts: Sequence[int] = (1 << 30,)) -> None:
        self.layout, self.device = inner.layout, inner.device
        self._inner, self._cuts = inner, cuts
        self._lent: list[weakref.ref[memoryview]] = []
        self.reading_now = 0

    def still_held(self) -> int:
        """Views that somebody has kept."""
        gc.collect()
        return sum(view() is not None for view in self._lent)

    def regions(self, span: Span) -> Sequence[Region]:
        return self._inner.regions(span)

    @contextmanager
    def reading(self, span: Span) -> Iterator[Sequence[memoryview]]:
        with self._inner.reading(span) as views:
            self.reading_now += 1
            try:
                lent = list(self._cut(views))
                self._lent.extend(map(weakref.ref, lent))
                yield lent
            finally:
                self.reading_now -= 1

    def _cut(self, views: Sequence[memoryview]) -> Iterator[memoryview]:
        turn = 0
        for view in views:
            at = 0
            while at < len(view):
                cut = self._cuts[turn % len(self._cuts)]
                yield view[at : at + cut].toreadonly()
                at, turn = at + cut, turn + 1

    def writing(self, span: Span) -> NoReturn:
        raise AssertionError("a digester writes to the memory that it should only read")


class Unreadable(BytesMemory):
    """Memory whose device is gone."""

    def reading(self, span: Span) -> NoReturn:
        raise OSError("the device is gone")


# ---------------------------------------------------------------------------------------- the suite


class DigesterContract:
    """Set :attr:`target`; override :meth:`memory` for digesters of other memory than the host's."""

    target: ClassVar[str] = ""
    """``module:callable`` that makes the digester; importable by a new process."""

    def open_digester(self) -> Digester:
        """A new digester; each one stands for another worker."""
        digester: Digester = resolve_name(self.target)()
        return digester

    def memory(self, layout: Layout, stream: bytes) -> Memory:
        """Memory of the kind that is digested, with the bytes of ``stream`` where the layout has storages."""
        memory = BytesMemory(layout)
        for start, storage in zip(layout.starts, memory.storages, strict=True):
            storage[:] = stream[start : start + len(storage)]
        return memory

    def of(self, data: bytes) -> bytes:
        """The digest of ``data`` as one storage."""
        layout = layout_of(max(len(data), 1))
        return self.open_digester().digest(self.memory(layout, data or b"\0"), Span(0, len(data)))

    def test_has_a_name_and_no_state(self) -> None:
        digester, other = self.open_digester(), self.open_digester()
        assert digester.algorithm
        assert digester.algorithm == other.algorithm
        memories = [self.memory(layout_of(1000), noise(1000, seed)) for seed in (1, 2)]
        first = [digester.digest(memory, Span(0, 1000)) for memory in memories]
        assert [digester.digest(memory, Span(0, 1000)) for memory in memories] == first, "another value the second time"
        assert [other.digest(memory, Span(0, 1000)) for memory in memories] == first, "another digester, another value"
        assert first[0] != first[1]

    @pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 255, 256, 257, 4095, 65_537, LENGTH])
    def test_a_digest_is_16_bytes(self, length: int) -> None:
        digest = self.of(noise(length))
        assert isinstance(digest, bytes)
        assert len(digest) == BYTES

    # -------------------------------------------------------------------- what must make no difference

    @pytest.mark.parametrize("span", SPANS, ids=str)
    def test_storages_and_padding_make_no_difference(self, span: Span) -> None:
        """The stream is what counts: one storage, or many with gaps, which are zeros."""
        layout = layout_of(*UNEVEN)
        stream = bytearray(layout.nbytes)
        for piece in layout.pieces(Span(0, layout.nbytes)):
            stream[piece.offset : piece.offset + piece.length] = noise(piece.length, piece.storage)
        digester = self.open_digester()
        expected = digester.digest(self.memory(layout_of(layout.nbytes), bytes(stream)), span)
        for sizes in (UNEVEN, [256] * (layout.nbytes // 256), [512, 256, 1024, layout.nbytes - 1792]):
            split = self.memory(layout_of(*sizes), bytes(stream))
            assert digester.digest(split, span) == expected, f"another value for storages of {sizes}"

    @pytest.mark.parametrize("cuts", [(1,), (2, 3, 5), (255, 1), (4096,), (65_535, 3), (262_144, 1)], ids=str)
    def test_how_views_are_cut_makes_no_difference(self, cuts: Sequence[int]) -> None:
        length = LENGTH if min(cuts) > 3 else 20_003
        memory = self.memory(layout_of(length), noise(length))
        for span in (Span(0, length), Span(1, length - 3)):
            whole = self.open_digester().digest(Watched(memory), span)
            assert self.open_digester().digest(Watched(memory, cuts), span) == whole

    def test_threads_make_no_difference(self) -> None:
        digester = self.open_digester()
        memories = [self.memory(layout_of(LENGTH), noise(LENGTH, seed)) for seed in range(4)]
        expected = [digester.digest(memory, Span(0, LENGTH)) for memory in memories]
        with ThreadPoolExecutor(4) as threads:
            for _ in range(4):
                assert list(threads.map(lambda memory: digester.digest(memory, Span(0, LENGTH)), memories)) == expected

    def test_another_process_makes_no_difference(self) -> None:
        data = noise(LENGTH)
        child = subprocess.run(
            [sys.executable, "-c", CHILD, self.target],
            env={**config.environment(), "PYTHONHASHSEED": "12345", "PYTHONPATH": pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=CHILD_SECONDS,
            check=False,
        )
        assert child.returncode == 0, child.stderr
        assert child.stdout.strip() == self.of(data).hex()

    # ------------------------------------------------------------------------ what must make a difference

    @pytest.mark.parametrize("content", CONTENTS)
    @pytest.mark.parametrize("damage", DAMAGES)
    def test_damage_is_found(self, damage: str, content: str) -> None:
        clean, luck = CONTENTS[content], random.Random(f"{damage} {content}")
        expected = self.of(clean)
        for _ in range(TRIES):
            damaged = bytearray(clean)
            DAMAGES[damage](damaged, luck)
            assert bytes(damaged) == clean or self.of(bytes(damaged)) != expected, f"{damage} in {content} is missed"

    def test_every_bit_counts(self) -> None:
        clean = noise(97)
        seen = {self.of(clean)}
        for bit in range(8 * len(clean)):
            damaged = bytearray(clean)
            damaged[bit // 8] ^= 1 << bit % 8
            seen.add(self.of(bytes(damaged)))
        assert len(seen) == 1 + 8 * len(clean)

    def test_every_place_counts(self) -> None:
        size = 600
        seen = {self.of(bytes(at) + b"\x01" + bytes(size - 1 - at)) for at in range(size)}
        assert len(seen) == size

    def test_length_counts(self) -> None:
        assert len({self.of(bytes(length)) for length in range(600)}) == 600

    # ------------------------------------------------------------------------------------ good manners

    def test_memory_is_only_read(self) -> None:
        data = noise(LENGTH)
        memory = self.memory(layout_of(LENGTH), data)
        self.open_digester().digest(memory, Span(0, LENGTH))
        self.open_digester().digest(Watched(memory), Span(0, LENGTH))
        with memory.reading(Span(0, LENGTH)) as views:
            assert b"".join(views) == data

    def test_nothing_is_held_after_the_return(self) -> None:
        """Memory that is drained or quarantined must be free at once."""
        digester = self.open_digester()
        memory = Watched(self.memory(layout_of(LENGTH), noise(LENGTH)), (100_000, 7))
        digester.digest(memory, Span(0, LENGTH))
        assert memory.reading_now == 0
        assert memory.still_held() == 0

    def test_memory_that_cannot_be_read_has_no_digest(self) -> None:
        with pytest.raises(OSError, match="device is gone"):
            self.open_digester().digest(Unreadable(layout_of(1000)), Span(0, 1000))


CHILD = """
import sys
from pkgutil import resolve_name
from coldstart.layout import Span
from coldstart.testing.digester_contract import LENGTH, DigesterContract, layout_of, noise
memory = DigesterContract().memory(layout_of(LENGTH), noise(LENGTH))
print(resolve_name(sys.argv[1])().digest(memory, Span(0, LENGTH)).hex())
"""
