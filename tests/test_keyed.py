"""Keyed digests: the contract of every digester, one value for one key, and another for any other."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import blake3
import pytest

from coldstart.errors import IntegrityError, PluginUnavailable
from coldstart.keyed import STAGED_BYTES, KeyedDigester
from coldstart.layout import Span
from coldstart.seals import Key
from coldstart.testing.digester_contract import DigesterContract
from coldstart.testing.memories import BytesMemory, layout_of

KEY = Key("d1", b"k" * 32)


def by_blake3() -> KeyedDigester:
    return KeyedDigester("blake3", KEY)


class TestBlake3(DigesterContract):
    target = "tests.test_keyed:by_blake3"


def test_it_is_the_hash_that_it_says() -> None:
    data = bytes(range(256)) * 5
    memory = BytesMemory(layout_of(len(data)))
    memory.storages[0][:] = data
    span = Span(0, len(data))
    key = KEY.mac("digest", "blake2b")
    assert KeyedDigester("blake2b", KEY).digest(memory, span) == hashlib.blake2b(data, key=key, digest_size=16).digest()
    key = KEY.mac("digest", "blake3")
    assert KeyedDigester("blake3", KEY).digest(memory, span) == blake3.blake3(data, key=key).digest()[:16]


@pytest.mark.parametrize("name", ["blake3", "blake2b"])
def test_another_key_is_another_digest_under_another_name(name: str) -> None:
    memory, span = BytesMemory(layout_of(1000), seed=1), Span(0, 1000)
    ours, theirs = KeyedDigester(name, KEY), KeyedDigester(name, Key("d1", b"x" * 32))
    assert ours.algorithm.startswith(f"{name}-")
    assert ours.algorithm != theirs.algorithm
    assert ours.digest(memory, span) != theirs.digest(memory, span)
    assert KEY.secret.hex()[:8] not in ours.algorithm


class OnDevice(BytesMemory):
    """Memory that is read through staging buffers of a limited size, as a device's is."""

    device = "cuda:0"

    def __init__(self, length: int) -> None:
        super().__init__(layout_of(length), seed=3)
        self.longest = 0
        self.done: list[str] = []

    def settle(self) -> None:
        self.done.append("settled")

    @contextmanager
    def reading(self, span: Span) -> Iterator[Sequence[memoryview]]:
        self.longest = max(self.longest, span.length)
        self.done.append("read")
        with super().reading(span) as views:
            yield views


def test_device_memory_is_read_in_pieces_that_its_staging_holds() -> None:
    length = 2 * STAGED_BYTES + 77
    memory, host = OnDevice(length), BytesMemory(layout_of(length), seed=3)
    assert by_blake3().digest(memory, Span(5, length - 9)) == by_blake3().digest(host, Span(5, length - 9))
    assert memory.longest == STAGED_BYTES
    assert memory.done[:6] == ["settled", "read", "read", "read"], "what the host has queued comes first, once"


def test_memory_that_lends_too_little_is_an_error() -> None:
    class Short(BytesMemory):
        @contextmanager
        def reading(self, span: Span) -> Iterator[Sequence[memoryview]]:
            with super().reading(Span(span.offset, span.length - 1)) as views:
                yield views

    with pytest.raises(IntegrityError, match="lent 99 bytes for the 100 bytes at 0"):
        by_blake3().digest(Short(layout_of(100)), Span(0, 100))


def test_without_its_library_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "blake3", None)
    with pytest.raises(PluginUnavailable, match="COLDSTART_DIGEST=blake2b"):
        by_blake3()
    KeyedDigester("blake2b", KEY)
