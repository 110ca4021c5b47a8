"""Whole files of a checkpoint in an object store, on this machine's disk, for loaders that must open them.

Decides where they lie: in the disk cache if there is one, else in a place from which they go as soon as they were
loaded, or, after a crash, when the next one is. It must not know what loads them.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import msgspec

from coldstart.ports import Checkpoint
from coldstart.shelves.cache import CachedFile, DiskCache
from coldstart.shelves.extents import missing
from coldstart.shelves.objects import Prefix
from coldstart.transports.reads import READ_BYTES
from coldstart.transports.threads import in_thread

LOADING: Final = "loading"
"""The directory, beside the mirrors, of what is only there while it is loaded."""


@asynccontextmanager
async def fetched(prefix: Prefix, checkpoint: Checkpoint) -> AsyncIterator[Checkpoint]:
    """``checkpoint`` as a directory in which all its files are, for the block.

    Raises:
        CheckpointError: an object is gone, changed since its header was read, cannot be read, or has no room.
    """
    with ExitStack() as stack:
        cache = stack.enter_context(_cache(prefix))
        files = await in_thread(partial(_taken, prefix, checkpoint, cache, stack))
        await _fill(prefix, files)
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="coldstart-"))) / prefix.root.name
        await in_thread(partial(_link, prefix, files, root))
        yield _moved(checkpoint, prefix.root, root)


@contextmanager
def _cache(prefix: Prefix) -> Iterator[DiskCache]:
    settings = prefix.settings
    if settings.cache is not None:
        yield DiskCache(settings.cache, settings.cache_bytes)
    elif settings.mirrors is not None:
        cache = DiskCache(settings.mirrors.parent / LOADING, 0)
        try:
            yield cache
        finally:
            cache.trim()
    else:
        with tempfile.TemporaryDirectory(prefix="coldstart-") as directory:
            yield DiskCache(Path(directory), 0)


def _taken(prefix: Prefix, checkpoint: Checkpoint, cache: DiskCache, stack: ExitStack) -> Mapping[Path, CachedFile]:
    home = prefix.url.home
    return {path: stack.enter_context(cache.using(home, prefix.objects[path])) for path in checkpoint.files}


async def _fill(prefix: Prefix, files: Mapping[Path, CachedFile]) -> None:
    """Fetch what is not on the disk yet."""
    queue = deque(
        (path, start, end)
        for path, file in files.items()
        for start, end in missing(file.have, prefix.objects[path].size, READ_BYTES)
    )
    failed: list[Exception] = []
    with closing(prefix.connect()) as bucket:

        async def work() -> None:
            try:
                while queue:
                    path, start, end = queue.popleft()
                    data = await bucket.fetch(prefix.objects[path], start, end - start)
                    await in_thread(partial(files[path].write, start, data, must=True))
            except Exception as error:  # raised below, outside of the task group
                failed.append(error)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for _ in range(min(prefix.settings.reads, len(queue))):
                tasks.start_soon(work)
    if failed:
        raise failed[0]
    for file in files.values():
        await in_thread(file.keep)


def _link(prefix: Prefix, files: Mapping[Path, CachedFile], root: Path) -> None:
    """What loaders look for, where they look for it."""
    for path in prefix.objects:
        there = files[path].path if path in files else path
        if there.exists():
            here = root / path.relative_to(prefix.root)
            here.parent.mkdir(parents=True, exist_ok=True)
            here.symlink_to(there)


def _moved(checkpoint: Checkpoint, old: Path, new: Path) -> Checkpoint:
    """``checkpoint`` as it is below another directory."""

    def moved(path: Path) -> Path:
        return new / path.relative_to(old)

    return msgspec.structs.replace(
        checkpoint,
        path=moved(checkpoint.path),
        files=tuple(moved(file) for file in checkpoint.files),
        tensors={
            name: msgspec.structs.replace(stored, file=moved(stored.file))
            for name, stored in checkpoint.tensors.items()
        },
        components={name: _moved(each, old, new) for name, each in checkpoint.components.items()},
    )
