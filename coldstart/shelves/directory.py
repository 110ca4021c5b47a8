"""A directory of this machine as a shelf: what is there is read in place.

Decides that only regular files are opened, for a pipe would be waited for for ever. It must not know checkpoints
(``checkpoint.py``); the weights themselves are read by ``transports/storage.py``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from coldstart.errors import CheckpointError
from coldstart.ports.shelves import Opened


class Directory:
    """See :class:`coldstart.ports.shelves.Shelf`; one object serves for all directories."""

    def shown(self, path: Path) -> str:
        return str(path)

    def names(self, directory: Path) -> Sequence[str]:
        return sorted(entry.name for entry in directory.iterdir())

    def is_file(self, path: Path) -> bool:
        return path.is_file()

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    @contextmanager
    def open(self, file: Path) -> Iterator[Opened]:
        if not stat.S_ISREG(file.stat().st_mode):
            raise CheckpointError(f"{file} cannot be used: not a regular file", advice="fetch or export it again")
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield _File(descriptor)
        finally:
            os.close(descriptor)


class _File:
    checksum = ""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        found = os.fstat(descriptor)
        self.size, self.modified = found.st_size, found.st_mtime_ns

    def read(self, offset: int, length: int) -> bytes:
        """One call may give less than is there: some file systems stop at 2 GiB, others at a signal."""
        parts: list[bytes] = []
        while length and (part := os.pread(self._descriptor, length, offset)):
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return b"".join(parts) if len(parts) != 1 else parts[0]


DIRECTORY = Directory()
