"""The small files of a checkpoint in an object store, brought to a directory: configurations, tokenizers, code.

Decides what is brought, and where to: a directory that is named after the very objects in it, so that it never holds
a mix of two versions, and any number of processes may fill it at once. Weights are not brought (``cache.py``).
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from coldstart.errors import CheckpointError
from coldstart.selection import is_weights
from coldstart.shelves.asking import Asking
from coldstart.shelves.bucket import Stored
from coldstart.shelves.location import StoreUrl

SMALL_BYTES: Final = 64 * 1024 * 1024
"""Of one file; the tokenizers of today have up to 35 MB."""
_READERS: Final = 8
_KEPT: Final = 32
"""Mirrors that stay, the latest used ones."""

_temporary: list[tempfile.TemporaryDirectory[str]] = []
"""Of processes without a cache directory; each is removed when the process ends."""


def place_of(directory: Path | None, url: StoreUrl, listed: Mapping[str, Stored]) -> Path:
    """Where ``url``, which has the files ``listed`` now, is mirrored below ``directory``; made if need be."""
    total = hashlib.blake2b(str(url).encode(), digest_size=16)
    for name, stored in sorted(listed.items()):
        total.update(f"\0{name}\0{stored.size}\0{stored.mark}".encode())
    try:
        if directory is None:
            _temporary.append(tempfile.TemporaryDirectory(prefix="coldstart-", ignore_cleanup_errors=True))
            return Path(_temporary[-1].name) / url.name
        home = directory / total.hexdigest()
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.utime(home)
        _forget(directory)
    except OSError as error:
        raise CheckpointError(
            f"no room for configurations at {directory}: {error.strerror or error}", advice="set COLDSTART_CACHE"
        ) from error
    return home / url.name


def bring(store: Asking, listed: Mapping[str, Stored], root: Path) -> None:
    """Fetch the small files of ``listed`` that are not below ``root`` yet."""
    directories = {name[:at] for name in listed for at, letter in enumerate(name) if letter == "/"}
    wanted = {
        root / name: stored
        for name, stored in listed.items()
        if is_small(name, stored) and name not in directories and not _is_here(root / name, stored)
    }
    with ThreadPoolExecutor(_READERS, thread_name_prefix="coldstart-mirror") as pool:
        for _ in pool.map(partial(_fetch, store), wanted.keys(), wanted.values()):
            pass


def is_small(name: str, stored: Stored) -> bool:
    """Whether it is brought; what git or a hub keeps for itself is not."""
    hidden = any(part.startswith(".") for part in name.split("/"))
    return not hidden and not is_weights(name) and stored.size <= SMALL_BYTES


def _is_here(path: Path, stored: Stored) -> bool:
    try:
        return path.stat().st_size == stored.size
    except OSError:
        return False


def _fetch(store: Asking, path: Path, stored: Stored) -> None:
    """Whole or not at all, whatever happens meanwhile."""
    data = store.read(stored, 0, stored.size) if stored.size else b""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{secrets.token_hex(8)}")
        try:
            unfinished.write_bytes(data)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        what = f"cannot write {path}: {error.strerror or error}"
        raise CheckpointError(what, advice="see COLDSTART_CACHE") from error


def _forget(directory: Path) -> None:
    """Remove the mirrors that were not used for longest."""
    with suppress(OSError):
        found = sorted((entry.stat().st_mtime_ns, entry.path) for entry in os.scandir(directory))
        for _, path in found[:-_KEPT]:
            shutil.rmtree(path, ignore_errors=True)
