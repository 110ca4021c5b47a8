"""The storage transport: the checkpoint's own bytes, read straight into the target.

Decides how the spans that are asked for are read: few system calls, several at a time, in the
order of the files, and only those spans, be it everything or the few bytes that a failed peer
still owes. It must not know torch or networks. Which bytes belong where was decided in
``placement.py``; whether they are the right ones is for the digest to say, as always.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from coldstart.errors import CheckpointError
from coldstart.layout import Span
from coldstart.ports import Checkpoint, Landed, Memory
from coldstart.transports.casting import cast
from coldstart.transports.placement import Placement, Unplaced, place
from coldstart.transports.reads import READ_BYTES, Read, selected
from coldstart.transports.threads import in_thread, run_in_threads
from coldstart.transports.unlent import Unlent, reads_for
from coldstart.transports.views import advanced, batches

__all__ = ["READ_BYTES", "Placement", "StorageTransport", "Unplaced", "check_unmodified", "place"]

READERS: Final = 4
_BESIDE: Final = "write a new checkpoint beside the old one instead"


class StorageTransport(Unlent):
    """Reads a checkpoint that holds a layout, perhaps in other dtypes; see ``ports.Transport``."""

    def __init__(self, checkpoint: Checkpoint, placement: Placement) -> None:
        super().__init__()
        self._checkpoint = checkpoint
        self._placement = placement

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        """Read ``spans``; the ticket is ignored.

        Raises:
            CheckpointError: a file is gone, shorter than its header said, changed since its header
                was read, or cannot be read; the message names file and offset.
        """
        reads = reads_for(spans, self._placement, into, landed, READ_BYTES)
        reads.sort(key=lambda read: (read.file, read.offset))
        pull = _Pull(reads, into, landed, self._checkpoint.modified)
        await self._run(pull)


def check_unmodified(checkpoint: Checkpoint) -> None:
    """See that the files are still those whose headers were read, for readers of another kind. Blocks.

    Raises:
        CheckpointError: a file is gone, or was written to since.
    """
    for path, modified in checkpoint.modified.items():
        _File(path, modified).close()


class _Pull:
    """The reads of one pull, shared by its threads. They walk through the files in order, together."""

    def __init__(
        self, reads: Iterable[Read], into: Memory, landed: Landed, modified: Mapping[Path, int]
    ) -> None:
        self._queue = deque(reads)
        self._modified = modified
        self._into = into
        self._landed = landed
        self._lock = threading.Lock()
        self._stopped = False
        self._error: Exception | None = None

    async def run(self) -> None:
        opened: dict[Path, _File] = {}
        with ExitStack() as stack:
            for path in sorted({read.file for read in self._queue}):
                opened[path] = await in_thread(partial(_File, path, self._modified.get(path)))
                stack.callback(opened[path].close)
            await run_in_threads(min(READERS, len(self._queue)), partial(self._work, opened), self.stop)
            if self._error is not None:
                raise self._error
            for file in opened.values():
                file.check_unchanged()

    def stop(self, error: Exception | None = None) -> None:
        """End all threads after the read they are in; the first error counts."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._error = error

    def _work(self, opened: Mapping[Path, _File]) -> None:
        try:
            while (read := self._next()) is not None:
                with self._into.writing(read.target) as views:
                    _bring(read, opened[read.file], selected(views, read))
                self._landed(read.landed)
        except Exception as error:
            self.stop(error)

    def _next(self) -> Read | None:
        with self._lock:
            return self._queue.popleft() if self._queue and not self._stopped else None


def _bring(read: Read, file: _File, views: Iterable[memoryview]) -> None:
    if read.conversion is None:
        file.read(read.offset, views)
        return
    stored = memoryview(bytearray(read.length))
    file.read(read.offset, [stored])
    cast(stored, read.conversion, read.skipped, views)


class _File:
    """One open file of the checkpoint, which must not change while it is read.

    ``modified`` is the time of its last write when its header was read; None: not known.
    """

    def __init__(self, path: Path, modified: int | None) -> None:
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise CheckpointError(
                f"cannot open {path}: {error.strerror or error}", advice="check the volume's mount and permissions"
            ) from error
        self._seen = os.fstat(self._descriptor)
        if modified is not None and self._seen.st_mtime_ns != modified:
            # What stands in it now may be of another version, and would become the truth of this one.
            self.close()
            raise CheckpointError(f"{path} was written to after its header was read", advice=_BESIDE)

    def read(self, offset: int, views: Iterable[memoryview]) -> None:
        """Fill ``views`` with the bytes from ``offset`` on."""
        for batch in batches(views, READ_BYTES):
            while batch:
                try:
                    count = os.preadv(self._descriptor, batch, offset)
                except OSError as error:
                    raise CheckpointError(
                        f"cannot read {self._path} at offset {offset}: {error.strerror or error}",
                        advice="check the storage behind it",
                    ) from error
                if count == 0:
                    raise CheckpointError(
                        f"{self._path} ends at offset {offset}, before the end its header promised",
                        advice="somebody truncated it while it was read; fetch it again",
                    )
                offset += count
                batch = advanced(batch, count)

    def check_unchanged(self) -> None:
        if self._changed():
            raise CheckpointError(f"{self._path} changed while it was read", advice=_BESIDE)

    def close(self) -> None:
        os.close(self._descriptor)

    def _changed(self) -> bool:
        """Whether the content may have changed; a file that was only unlinked or replaced has not.

        The time of the last status change cannot be set back, as that of the last write can.
        """
        now, seen = os.fstat(self._descriptor), self._seen
        written = (now.st_size, now.st_mtime_ns) != (seen.st_size, seen.st_mtime_ns)
        return written or (now.st_ctime_ns != seen.st_ctime_ns and now.st_nlink == seen.st_nlink)
