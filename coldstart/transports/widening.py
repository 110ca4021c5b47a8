"""Numbers that are stored in bfloat16 and carried in float32, as loaders keep routers and norms of models in 16 bits.

Decides which stored bytes are needed for a part of the carried ones, and what they become: every bfloat16 is the first
half of a float32, so that nothing is rounded. Pure; which tensors are stored like that was decided in ``placement.py``.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from coldstart.transports.placement import BFLOAT16, FLOAT32


def stored_length(skipped: int, length: int) -> int:
    """Bytes in the file for ``length`` carried ones, of whose first number ``skipped`` bytes are not wanted."""
    return -(-(skipped + length) // FLOAT32) * BFLOAT16


def widen(stored: bytearray, skipped: int, views: Iterable[memoryview]) -> None:
    """Fill ``views`` with the carried bytes of ``stored``, from byte ``skipped`` of its first number on."""
    numbers = np.frombuffer(stored, dtype="<u2").astype("<u4") << 16
    at = skipped
    carried = numbers.view(np.uint8)
    for view in views:
        np.copyto(np.frombuffer(view, np.uint8), carried[at : at + len(view)])
        at += len(view)
