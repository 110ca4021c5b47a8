"""A worker's carried bytes, and the pieces of memory that they lie in."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

import msgspec

from coldstart.layout import Layout, Span


class Region(msgspec.Struct, frozen=True):
    """A piece of memory as native transports see it.

    ``device`` is ``cpu`` or ``cuda:N``; ``address`` and ``length`` are in bytes; ``offset`` is
    where the region stands in the stream.
    """

    device: str
    address: int
    length: int
    offset: int


@runtime_checkable
class Memory(Protocol):
    """One worker's carried bytes, addressed by their offset in the layout's stream.

    Padding between storages reads as zeros and may be written with anything.
    All methods may be called from any thread.
    """

    @property
    def layout(self) -> Layout: ...

    @property
    def device(self) -> str: ...

    def regions(self, span: Span) -> Sequence[Region]:
        """The memory behind ``span``, for transports that move bytes by address."""
        ...

    def reading(self, span: Span) -> AbstractContextManager[Sequence[memoryview]]:
        """Views that together hold the ``span.length`` bytes of ``span``, in order.

        CPU memory is lent in place; device memory is copied to pinned staging first.
        """
        ...

    def writing(self, span: Span) -> AbstractContextManager[Sequence[memoryview]]:
        """Writable views for ``span``; when the block ends without error the bytes are in place.

        For device memory the views are pinned staging, copied and synchronised on exit.
        """
        ...


@runtime_checkable
class Settling(Protocol):
    """What a memory may offer beside :class:`Memory`: to know what its host is still doing to it."""

    def settle(self) -> None:
        """Return when what was queued on the device's default stream before this call is done. Blocks; any thread."""
        ...
