"""Goes to where a checkpoint is, and reads its headers.

Decides which shelf is used; stores are imported only when one is named. Blocks, but a caller that is cancelled is not
waited for by a request to a store: these are made on his own loop, and end with his task. What was found is read by
``coldstart.transports``.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

import anyio
import anyio.to_thread
import msgspec
from anyio import from_thread

from coldstart.checkpoint import read_checkpoint
from coldstart.errors import PluginUnavailable
from coldstart.ports import Checkpoint
from coldstart.shelves.location import ShelfSettings, StoreUrl, located

if TYPE_CHECKING:
    from coldstart.shelves.objects import Objects, Prefix


class Found(msgspec.Struct, frozen=True):
    """A checkpoint, what people call it, and the objects that it is made of if it is in a store."""

    checkpoint: Checkpoint
    name: str
    prefix: Prefix | None = None


def find(checkpoint: str | Path, settings: ShelfSettings) -> Found:
    """Read the headers of ``checkpoint``, a path or a URL.

    Raises:
        ConfigError: a URL that is none.
        CheckpointError: nothing there, unreadable, refused, truncated, or malformed.
        PluginUnavailable: the library for object stores is not installed.
    """
    where = located(checkpoint)
    if isinstance(where, Path):
        return Found(read_checkpoint(where), where.resolve().name)
    try:
        from_thread.check_cancelled()
    except RuntimeError:  # not a thread that anyio has started: a command's, which has no loop
        return anyio.run(_find, where, settings)
    return from_thread.run(_find, where, settings)


async def _find(url: StoreUrl, settings: ShelfSettings) -> Found:
    """The parser of headers blocks, and so has a thread; what that waits for is ours, and is cancelled with us."""
    found, failed = list[Found](), list[Exception]()
    async with from_thread.BlockingPortal() as portal:
        read = partial(_read, url, settings, portal)
        try:
            found.append(await anyio.to_thread.run_sync(read, limiter=anyio.CapacityLimiter(1)))
        except Exception as error:  # raised below, outside of the portal's tasks
            failed.append(error)
    if failed:
        raise failed.pop()
    return found[0]


def _read(url: StoreUrl, settings: ShelfSettings, portal: from_thread.BlockingPortal) -> Found:
    with closing(_objects(url, settings, portal)) as shelf:
        found = msgspec.structs.replace(read_checkpoint(shelf.root, shelf), origin=str(url))
        return Found(found, url.name, shelf.prefix)


def _objects(url: StoreUrl, settings: ShelfSettings, portal: from_thread.BlockingPortal) -> Objects:
    try:
        objects = import_module("coldstart.shelves.objects")
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise PluginUnavailable(
            f"{url} is in an object store, and obstore is not installed",
            advice="pip install 'coldstart-weights[object-stores]'",
        ) from error
    return cast("Objects", objects.Objects(url, settings, portal))
