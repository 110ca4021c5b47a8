"""How inputs are made from others: by luck that a seed decides.

Decides only what the next input is. The same seed makes the same inputs, everywhere.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

MOST_BYTES = 64 * 1024

_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1)
_TOKENS = (
    *(b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc0", b"\xc1", b"\xa1\xff"),
    *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"null", b"-1", b"1e999", b"NaN", b"\\ud800"),
    *(b"\0", b"\n", b"../", b"CST1", b"CSK1"),
)


def inputs(seeds: Sequence[bytes], luck: random.Random) -> Iterator[bytes]:
    """Without end: the seeds themselves, then what becomes of them."""
    yield from seeds
    pool = list(seeds)
    while True:
        data = bytearray(luck.choice(pool))
        for _ in range(luck.choice((1, 1, 1, 2, 3, 8))):
            _change(data, luck, pool)
        yield bytes(data[:MOST_BYTES])
        if luck.random() < 0.02:
            pool.append(bytes(data[:MOST_BYTES]))
            del pool[len(seeds) : max(len(seeds), len(pool) - 200)]


def _change(data: bytearray, luck: random.Random, pool: Sequence[bytes]) -> None:
    at = luck.randrange(len(data) + 1)
    match luck.randrange(9):
        case 0 if data:
            data[at % len(data)] ^= 1 << luck.randrange(8)
        case 1 if data:
            data[at % len(data)] = luck.randrange(256)
        case 2:
            del data[at : at + luck.randrange(1, 16)]
        case 3:
            data[at:at] = luck.randbytes(luck.randrange(1, 16))
        case 4:
            data[at:at] = luck.choice(_TOKENS)
        case 5:
            size = luck.choice((1, 2, 4, 8))
            number = luck.choice(_NUMBERS) % 256**size
            data[at : at + size] = number.to_bytes(size, luck.choice(("little", "big")))
        case 6:
            data[at:at] = data[at : at + luck.randrange(1, 64)] * luck.choice((1, 2, 50, 1000))
        case 7:
            other = luck.choice(pool)
            start = luck.randrange(len(other) + 1)
            data[at:] = other[start:]
        case _:
            del data[at:]
