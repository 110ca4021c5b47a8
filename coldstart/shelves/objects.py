"""A prefix of an object store as a shelf: listed once, each file looked at when its header is read.

Decides which objects are the files of a checkpoint, and that every later read is of these very objects: what was
overwritten since is refused, never mixed. It must not know obstore (``bucket.py``) nor tensors. Weights are read by
``transports/objects.py``, from the :class:`Prefix` that is left of the shelf.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec
from anyio.from_thread import BlockingPortal

from coldstart.errors import CheckpointError
from coldstart.ports.shelves import Opened
from coldstart.shelves.asking import Asking
from coldstart.shelves.bucket import Bucket, Stored
from coldstart.shelves.directory import DIRECTORY
from coldstart.shelves.location import ShelfSettings, StoreUrl, is_plain
from coldstart.shelves.mirror import bring, is_small, place_of

MAX_OBJECTS: Final = 10_000
"""Below a checkpoint; more are somebody's whole collection."""


class Prefix(msgspec.Struct, frozen=True):
    """A checkpoint's objects, by the paths at which they would be below ``root`` if they were fetched."""

    url: StoreUrl
    settings: ShelfSettings
    root: Path
    objects: Mapping[Path, Stored]

    def connect(self) -> Bucket:
        """Connections of its own, for the caller to close."""
        return Bucket(self.url, self.settings)


class Objects:
    """See :class:`coldstart.ports.Shelf`. Making one lists the prefix and brings its small files to ``root``.

    Its requests are made on the loop of ``portal``, and end with it.
    """

    def __init__(self, url: StoreUrl, settings: ShelfSettings, portal: BlockingPortal) -> None:
        self._bucket = Bucket(url, settings)
        self._store = Asking(self._bucket, portal)
        with ExitStack() as refused:
            refused.callback(self._bucket.close)
            listed = _listed(self._store, url)
            root = place_of(settings.mirrors, url, listed)
            if "" not in listed:
                bring(self._store, listed, root)
            refused.pop_all()
        self._objects = {root / name if name else root: stored for name, stored in listed.items()}
        self._local = frozenset(root / name for name, stored in listed.items() if name and is_small(name, stored))
        self._children = _children(root, self._objects)
        self._url, self._settings, self._root = url, settings, root

    def close(self) -> None:
        """Close the connections; only :attr:`prefix` is of use then."""
        self._bucket.close()

    @property
    def prefix(self) -> Prefix:
        """What later reads need; each object as it was when it was opened, where it was."""
        return Prefix(self._url, self._settings, self._root, dict(self._objects))

    @property
    def root(self) -> Path:
        return self._root

    def shown(self, path: Path) -> str:
        return f"{self._url}/{path.relative_to(self._root)}".removesuffix("/.")

    def names(self, directory: Path) -> Sequence[str]:
        return sorted(self._children.get(directory, ()))

    def is_file(self, path: Path) -> bool:
        return path in self._objects

    def is_directory(self, path: Path) -> bool:
        return path in self._children

    @contextmanager
    def open(self, file: Path) -> Iterator[Opened]:
        if file in self._local:
            with DIRECTORY.open(file) as opened:
                yield opened
            return
        listed = self._objects[file]
        found = self._store.stat(listed.key)
        if found is None or found.size != listed.size:
            raise CheckpointError(f"{self.shown(file)} changed while it was looked at", advice="wait for the upload")
        self._objects[file] = found
        yield _Object(self._store, found)


class _Object:
    modified = 0

    def __init__(self, store: Asking, stored: Stored) -> None:
        self._store, self._stored = store, stored
        self.size, self.checksum = stored.size, stored.mark

    def read(self, offset: int, length: int) -> bytes:
        length = min(length, self.size - offset)
        return bytes(self._store.read(self._stored, offset, length)) if length > 0 else b""


def _listed(store: Asking, url: StoreUrl) -> Mapping[str, Stored]:
    """The checkpoint's objects by their names below ``url``; of a single file, that under the empty name."""
    if url.key.endswith(".safetensors"):
        single = store.stat(url.key)
        if single is not None:
            return {"": single}
    found = store.list(MAX_OBJECTS)
    if len(found) > MAX_OBJECTS:
        raise CheckpointError(f"more than {MAX_OBJECTS} objects below {url}", advice="name the checkpoint's own prefix")
    start = len(url.key) + 1 if url.key else 0
    named = {stored.key[start:]: stored for stored in found if is_plain(stored.key[start:])}
    if not named:
        raise CheckpointError(f"no checkpoint at {url}: nothing is there", advice="check the bucket and the path")
    return named


def _children(root: Path, objects: Mapping[Path, Stored]) -> Mapping[Path, set[str]]:
    """What is directly in each directory that has something below it."""
    found: dict[Path, set[str]] = {}
    for path in objects:
        while path != root:
            found.setdefault(path.parent, set()).add(path.name)
            path = path.parent
    return found
