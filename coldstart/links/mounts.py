"""Which storage a checkpoint is on, as far as its rate is concerned: a bucket, or where its file system is mounted.

Decides nothing else; what is remembered of a mount is in ``memory.py``. It blocks, on a network file system
for as long as that takes.
"""

from __future__ import annotations

import os
from pathlib import Path

from coldstart.ports import Checkpoint
from coldstart.shelves.location import StoreUrl, located


def storage_of(checkpoint: Checkpoint) -> str:
    """The bucket, or the mount point, that ``checkpoint`` is read from; empty where it cannot be told."""
    where = located(checkpoint.origin or checkpoint.path)
    return where.home if isinstance(where, StoreUrl) else mount_of(where)


def mount_of(path: Path) -> str:
    """The mount point above ``path``, links followed; empty where it cannot be told."""
    try:
        place = path.resolve()
        while not os.path.ismount(place):
            place = place.parent
    except (OSError, RuntimeError):
        return ""
    return str(place)
