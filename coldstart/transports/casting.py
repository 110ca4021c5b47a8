"""Numbers that are stored in one floating-point dtype and carried in another, cast as they are read.

Decides what stored bytes become: what torch's ``.to(dtype)`` makes of them on a CPU, so that a chunk has the same bytes
whether it was read like this or loaded whole. Not-a-number is the exception: which of its many patterns torch gives
depends on the processor, and on the place in the tensor, so that here it is always that of :data:`NAN` (or, from
bfloat16 to float32, the stored one, as everywhere). It must not know files; which bytes are needed was decided in
``reads.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan
from typing import Final

import numpy as np
import torch

from coldstart.transports.conversions import Conversion

NAN: Final = float("nan")
"""As a result it is positive, quiet and without a payload: 7fc00000, 7e00 or 7fc0."""
_AT_ONCE: Final = 32_000
"""Numbers: they stay in a processor's own cache, and are fewer than torch would divide among threads of its own."""
_KEPT: Final = Conversion("bfloat16", "float32")
"""A bfloat16 is the first half of a float32, whatever it stands for."""


def cast(stored: memoryview, conversion: Conversion, skipped: int, views: Iterable[memoryview]) -> None:
    """Fill ``views`` with the carried bytes of ``stored``, from byte ``skipped`` of its first number on."""
    numbers = torch.frombuffer(stored, dtype=getattr(torch, conversion.stored))
    dtype, size = getattr(torch, conversion.carried), conversion.carried_size
    at = skipped
    for view in views:
        first, last = at // size, -(-(at + len(view)) // size)
        if at % size or len(view) % size:
            made = torch.empty(last - first, dtype=dtype, device="cpu")
            _fill(made, numbers[first:last], conversion)
            begins = at - first * size
            np.copyto(np.frombuffer(view, np.uint8), made.view(torch.uint8).numpy()[begins : begins + len(view)])
        else:
            _fill(torch.frombuffer(view, dtype=dtype), numbers[first:last], conversion)
        at += len(view)


def _fill(made: torch.Tensor, numbers: torch.Tensor, conversion: Conversion) -> None:
    for at in range(0, len(numbers), _AT_ONCE):
        part, becomes = numbers[at : at + _AT_ONCE], made[at : at + _AT_ONCE]
        becomes.copy_(part)
        if conversion != _KEPT and isnan(becomes.sum().item()):  # as it is with one in it; quicker than a look at each
            becomes.masked_fill_(part.isnan(), NAN)
