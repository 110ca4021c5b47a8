"""Shelves: where the files of a checkpoint are kept, as far as those need to know who read headers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol


class Opened(Protocol):
    """One file that is being read.

    ``modified`` is the time of its last write in ns, as it was before anything was read; 0: not known.
    ``checksum`` is the store's own word for the content: equal ones stand for equal bytes. It is empty where the
    store has none, as a file system.
    """

    @property
    def size(self) -> int: ...

    @property
    def modified(self) -> int: ...

    @property
    def checksum(self) -> str: ...

    def read(self, offset: int, length: int) -> bytes:
        """The bytes from ``offset`` on; fewer than ``length`` only at the end of the file."""
        ...


class Shelf(Protocol):
    """The files of one checkpoint: list, stat, read ranges.

    Files are named by the path at which they are on this machine, or would be if they were fetched. Every method
    blocks, may be called from any thread, and raises OSError or CheckpointError.
    """

    def shown(self, path: Path) -> str:
        """What people call ``path``: itself, or its URL."""
        ...

    def names(self, directory: Path) -> Sequence[str]:
        """What is directly in ``directory``, sorted."""
        ...

    def is_file(self, path: Path) -> bool: ...

    def is_directory(self, path: Path) -> bool: ...

    def open(self, file: Path) -> AbstractContextManager[Opened]: ...
