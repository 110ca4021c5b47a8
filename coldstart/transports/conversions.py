"""Which numbers can be cast as they are read, and how many stored bytes are behind carried ones.

Decides by names of dtypes alone: the three that models are stored and computed in, from any of them to any other. Pure;
what a stored number becomes is in ``casting.py``, and that a loader does nothing else was said by its builder
(``ports.Cast``).
"""

from __future__ import annotations

from typing import Final

import msgspec

SIZES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of one number."""


class Conversion(msgspec.Struct, frozen=True):
    """Numbers of the dtype ``stored`` in a file that are of the dtype ``carried`` in memory; both are in ``SIZES``."""

    stored: str
    carried: str

    @property
    def stored_size(self) -> int:
        return SIZES[self.stored]

    @property
    def carried_size(self) -> int:
        return SIZES[self.carried]

    def stored_offset(self, carried: int) -> int:
        """Where the number begins in the file that has the byte ``carried`` in memory; both in bytes from the first."""
        return carried // self.carried_size * self.stored_size

    def stored_length(self, skipped: int, length: int) -> int:
        """Bytes in the file for ``length`` carried ones, of whose first number ``skipped`` bytes are not wanted."""
        return -(-(skipped + length) // self.carried_size) * self.stored_size

    def carried_length(self, stored: int) -> int:
        """Bytes in memory of ``stored`` ones in the file, which are whole numbers."""
        return stored // self.stored_size * self.carried_size


def conversion(stored: str, carried: str) -> Conversion | None:
    """From one dtype to the other; None if they are the same, or numbers are not cast between them here."""
    if stored == carried or not {stored, carried} <= SIZES.keys():
        return None
    return Conversion(stored, carried)
