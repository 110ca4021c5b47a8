"""Which storage a path is on, as far as its rate is concerned: the place at which its file system is mounted.

Decides nothing else; what is remembered of a mount is in ``memory.py``. It blocks, on a network file system
for as long as that takes.
"""

from __future__ import annotations

import os
from pathlib import Path


def mount_of(path: Path) -> str:
    """The mount point above ``path``, links followed; empty where it cannot be told."""
    try:
        place = path.resolve()
        while not os.path.ismount(place):
            place = place.parent
    except (OSError, RuntimeError):
        return ""
    return str(place)
