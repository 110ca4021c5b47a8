"""What one look at a module tells of its weights without reading a byte of them.

A value and the protocol of whoever looks. What the look goes by is decided in ``skeletons/watch.py``, what
follows from it in ``inspecting.py``. It must not know tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec


class Glance(msgspec.Struct, frozen=True):
    """What is different from when the weights were last proven.

    Args:
        moved: the first tensor that is not where it was verified, and how, in words; empty if all are.
        written: tensors that somebody has written to, and the count of writes as of this look.
        chunks: where these lie; whether their bytes are other ones is for the digest to say.
    """

    moved: str = ""
    written: Mapping[str, int] = {}
    chunks: tuple[int, ...] = ()


class Watch(Protocol):
    """Looks at a module's carried tensors."""

    def look(self) -> Glance:
        """What is different. Reads no weights; milliseconds for thousands of tensors. Any thread."""
        ...

    def proven(self, glance: Glance) -> None:
        """The chunks of ``glance`` were digested after it and are right: its writes changed nothing."""
        ...
