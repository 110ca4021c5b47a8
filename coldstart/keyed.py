"""Keyed digests: for networks on which somebody may choose the bytes.

Decides how a cryptographic hash is computed over memory of any kind: the bytes of a span, padding as zeros, by
BLAKE3 (keyed mode) or BLAKE2b (RFC 7693, with a key), cut to 16 bytes. Who does not have the key can neither
make other bytes for a digest nor, as anybody can for an unkeyed one, look for two pieces with the same. The usual
digest (``csfp1.py``) finds faults as well and is computed where the bytes lie; this one reads device memory
through the host, a few MiB at a time for each thread, and is no faster than the host's cores. It must not know
where keys are kept (``keyring.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Protocol, cast

from coldstart.errors import IntegrityError, PluginUnavailable
from coldstart.layout import Span
from coldstart.ports import Memory, Settling
from coldstart.seals import Key

DIGEST_BYTES = 16
STAGED_BYTES = 8 * 1024 * 1024
"""Device memory is read so much at a time: what its staging buffers hold (``arena.py``)."""


class _Hash(Protocol):
    """A hash under way, as hashlib's and blake3's are."""

    def update(self, data: memoryview, /) -> object: ...


class KeyedDigester:
    """A digester that needs the fleet's digest key. One call uses one core, without the interpreter lock.

    ``algorithm`` names the hash and, by eight digits that tell nothing of it, the key: fleets with different ones
    do not take each other's truth.

    Args:
        name: ``blake3`` or ``blake2b``.

    Raises:
        PluginUnavailable: blake3 is not installed.
    """

    def __init__(self, name: str, key: Key) -> None:
        self.algorithm = f"{name}-{key.mac('digest name', name)[:4].hex()}"
        self._begin, self._end = (_blake3 if name == "blake3" else _blake2b)(key.mac("digest", name))

    def digest(self, memory: Memory, span: Span) -> bytes:
        """16 bytes over every byte of ``span``, after what the host had begun to write there.

        Raises:
            IntegrityError: the memory lent more or fewer bytes than the span has.
        """
        if isinstance(memory, Settling):
            memory.settle()
        hashing, lent = self._begin(), 0
        for part in _parts(memory, span):
            with memory.reading(part) as views:
                for view in views:
                    flat = view.cast("B")
                    hashing.update(flat)
                    lent += len(flat)
        if lent != span.length:
            raise IntegrityError(f"memory lent {lent} bytes for the {span.length} bytes at {span.offset}")
        return self._end(hashing)


def _parts(memory: Memory, span: Span) -> Iterator[Span]:
    """``span`` in pieces that can be read at one time."""
    size = span.length if memory.device == "cpu" else STAGED_BYTES
    for offset in range(span.offset, span.end, max(size, 1)):
        yield Span(offset, min(size, span.end - offset))


_Made = tuple[Callable[[], _Hash], Callable[[_Hash], bytes]]
"""What begins a hash, and what its digest is."""


def _blake2b(secret: bytes) -> _Made:
    def end(hashing: _Hash) -> bytes:
        return cast("hashlib.blake2b", hashing).digest()

    return lambda: hashlib.blake2b(key=secret, digest_size=DIGEST_BYTES), end


class _Blake3(_Hash, Protocol):
    def digest(self, length: int) -> bytes: ...


def _blake3(secret: bytes) -> _Made:
    try:
        module = import_module("blake3")
    except ImportError as error:
        advice = "run: pip install 'coldstart-weights[secure]', or set COLDSTART_DIGEST=blake2b"
        raise PluginUnavailable("the digest blake3 needs the package blake3", advice=advice) from error
    make = cast("Callable[..., _Blake3]", module.blake3)

    def end(hashing: _Hash) -> bytes:
        return cast(_Blake3, hashing).digest(DIGEST_BYTES)

    return lambda: make(key=secret), end
