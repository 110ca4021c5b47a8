"""The digest's row sums in one kernel, for CUDA devices on which Triton is installed.

Decides nothing: it computes the y of ``csfp1.py``, reading each word once where torch's
operators move it five times. Imported only when a CUDA device is hashed; ``rowsums.py`` compares
it with torch's operators on that device before it relies on it, and does without it if it
cannot be imported, compiled or trusted.
"""

from __future__ import annotations

import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]

PARTS = 8
"""Programs per row: enough of them for a device even when a chunk has only four rows."""

BLOCK = 512
"""Words per step; of the sizes tried this gave the most, 2.8 TB/s of an H200's 4.3."""


def _add_rows(
    words: tl.tensor,
    keys: tl.tensor,
    sums: tl.tensor,
    first: tl.tensor,
    row_words: tl.constexpr,
    parts: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Add to ``sums`` (int64, (rows, 2)), from row ``first`` on, what one part of one row of ``words`` contributes."""
    row = tl.program_id(0).to(tl.int64)
    part_words: tl.constexpr = row_words // parts
    start = tl.program_id(1) * part_words
    one = tl.zeros((block,), tl.int64)
    two = tl.zeros((block,), tl.int64)
    for at in range(0, part_words, block):
        column = start + at + tl.arange(0, block)
        word = tl.load(words + row * row_words + column).to(tl.int64)
        one += word * tl.load(keys + column)
        two += word * tl.load(keys + row_words + column)
    out = sums + 2 * (first + row)
    tl.atomic_add(out, tl.sum(one, 0))
    tl.atomic_add(out + 1, tl.sum(two, 0))


add_rows = triton.jit(_add_rows, do_not_specialize=["first"])
"""Launch with a grid of (rows, :data:`PARTS`); 64-bit sums wrap, so their order does not matter.

Never compiled for a particular ``first``: that would happen in the middle of a transfer.
"""
