"""Goes to where a checkpoint is, and reads its headers.

Decides which shelf is used; stores are imported only when one is named. Blocks. What was found is read by
``coldstart.transports``.
"""

from __future__ import annotations

from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

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
    with closing(_objects(where, settings)) as shelf:
        found = msgspec.structs.replace(read_checkpoint(shelf.root, shelf), origin=str(where))
        return Found(found, where.name, shelf.prefix)


def _objects(url: StoreUrl, settings: ShelfSettings) -> Objects:
    try:
        objects = import_module("coldstart.shelves.objects")
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise PluginUnavailable(
            f"{url} is in an object store, and obstore is not installed",
            advice="pip install 'coldstart-weights[object-stores]'",
        ) from error
    return cast("Objects", objects.Objects(url, settings))
