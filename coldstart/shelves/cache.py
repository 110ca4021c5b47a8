"""The disk cache: what was read of objects, kept on this machine for the next start.

Decides what is kept, what is believed, and what goes when there is no room. An object has a directory of its own,
named after its content: ``data``, a sparse file, and ``have``, which says what of it is there. ``have`` is replaced as
a whole after the bytes are on the disk, so that a crash at any moment costs bytes and never invents any. Whoever uses
an object holds a shared lock on its ``lock``; what is locked is not removed. The least recently used goes first.
It must not know stores; everything here blocks.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from coldstart.errors import CheckpointError
from coldstart.shelves.bucket import Stored
from coldstart.shelves.extents import Extents, covers, union

_GONE: Final = ".gone-"
_KEEP_EVERY: Final = 1 << 30
"""So many bytes are written before what is there is made known: what a crash costs at most."""
_MAX_HAVE_BYTES: Final = 16 << 20


class CachedFile:
    """One object on this machine's disk, in use until :meth:`DiskCache.using` ends. Calls may come from any thread."""

    def __init__(self, directory: Path, size: int, *, full: bool) -> None:
        self.path = directory / "data"
        self._directory, self._size, self._full = directory, size, full
        self._lock = threading.Lock()
        self._have = _read_have(directory, size)
        self._fresh = 0
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        found = os.fstat(self._descriptor).st_size
        if found != size:
            self._have = () if found < size else self._have
            os.ftruncate(self._descriptor, size)

    @property
    def have(self) -> Extents:
        return self._have

    def has(self, start: int, end: int) -> bool:
        return covers(self._have, start, end)

    def read(self, offset: int, view: memoryview) -> None:
        """Fill ``view`` with the bytes from ``offset`` on, which are there."""
        while len(view):
            count = os.preadv(self._descriptor, [view], offset)
            if not count:
                raise CheckpointError(f"{self.path} is shorter than it was", advice="remove it")
            offset, view = offset + count, view[count:]

    def write(self, offset: int, data: memoryview, *, must: bool = False) -> None:
        """Keep ``data``. Without room nothing is kept from then on; what ``must`` be kept raises CheckpointError."""
        if self._full and not must:
            return
        end, at = offset + len(data), offset
        try:
            while at < end:
                at += os.pwrite(self._descriptor, data[at - offset :], at)
        except OSError as error:
            self._full = True
            if must:
                what = f"cannot write {self.path}: {error.strerror or error}"
                raise CheckpointError(what, advice="make room, or see COLDSTART_DISK_CACHE") from error
            return
        with self._lock:
            self._have = union(self._have, [(offset, end)])
            self._fresh += len(data)
            due = self._fresh >= _KEEP_EVERY
        if due:
            self.keep()

    def keep(self) -> None:
        """Make known to other processes, and to later ones, what is there."""
        with self._lock:
            if not self._fresh:
                return
            self._fresh, have = 0, self._have
        with suppress(OSError):  # the bytes are used in any case; the next start reads them again
            os.fdatasync(self._descriptor)
            with _locked(self._directory / "write", fcntl.LOCK_EX):
                known = union(have, _read_have(self._directory, self._size))
                _replace(self._directory / "have", msgspec.json.encode(known))

    def close(self) -> None:
        os.close(self._descriptor)


class DiskCache:
    """A directory of objects that takes at most ``limit`` bytes, but for what is in use."""

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory, self._limit = directory, limit

    @contextmanager
    def using(self, url: str, stored: Stored) -> Iterator[CachedFile]:
        """The object's place in the cache; it stays for as long as the block is open.

        Raises:
            CheckpointError: the directory cannot be used.
        """
        name = f"{url}\0{stored.key}\0{stored.size}\0{stored.mark}"
        home = self._directory / hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        try:
            with _in_use(home):
                full = not self._make_room(home, stored.size)
                file = CachedFile(home, stored.size, full=full)
                try:
                    yield file
                finally:
                    file.close()
        except OSError as error:
            raise CheckpointError(
                f"the disk cache {self._directory} cannot be used: {error.strerror or error}",
                advice="check COLDSTART_DISK_CACHE",
            ) from error

    def trim(self) -> None:
        """Remove what is over the limit and not in use."""
        with suppress(OSError):
            self._make_room(None, 0)

    def _make_room(self, home: Path | None, size: int) -> bool:
        """Remove what was not used for longest; whether ``size`` bytes at ``home`` then fit."""
        others: list[tuple[int, int, Path]] = []
        for entry in os.scandir(self._directory):
            if entry.name.startswith(_GONE):
                shutil.rmtree(entry.path, ignore_errors=True)  # of a process that ended while it removed it
            elif (home is None or entry.name != home.name) and entry.is_dir():
                others.append((_used_at(Path(entry.path)), _taken(Path(entry.path)), Path(entry.path)))
        total = size + sum(taken for _, taken, _ in others)
        for _, taken, path in sorted(others):
            if total <= self._limit:
                break
            if _remove(path):
                total -= taken
        return total <= self._limit


@contextmanager
def _in_use(home: Path) -> Iterator[None]:
    """A shared lock on ``home``, which is there; somebody may remove it just before it is locked."""
    while True:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with _locked(home / "lock", fcntl.LOCK_SH) as descriptor:
                if os.fstat(descriptor).st_ino == os.stat(home / "lock").st_ino:
                    os.utime(home / "lock")
                    yield
                    return
        except FileNotFoundError:
            if home.exists():
                raise


@contextmanager
def _locked(path: Path, how: int) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, how)
        yield descriptor
    finally:
        os.close(descriptor)


def _remove(home: Path) -> bool:
    """Remove an object that nobody uses; it is out of the way at once, and then deleted."""
    try:
        with _locked(home / "lock", fcntl.LOCK_EX | fcntl.LOCK_NB):
            gone = home.with_name(f"{_GONE}{secrets.token_hex(8)}")
            home.rename(gone)
    except OSError:  # in use, or removed by somebody else
        return False
    shutil.rmtree(gone, ignore_errors=True)
    return True


def _used_at(home: Path) -> int:
    try:
        return (home / "lock").stat().st_mtime_ns
    except OSError:
        return 0


def _taken(home: Path) -> int:
    """Bytes on the disk, not the size of a file with holes."""
    try:
        return (home / "data").stat().st_blocks * 512
    except OSError:
        return 0


def _read_have(home: Path, size: int) -> Extents:
    """What the file says of an object of ``size`` bytes; one that is damaged says nothing."""
    try:
        with (home / "have").open("rb") as file:
            have = union(msgspec.json.decode(file.read(_MAX_HAVE_BYTES), type=list[tuple[int, int]]))
    except (OSError, msgspec.DecodeError):
        return ()
    return have if all(start >= 0 and end <= size for start, end in have) else ()


def _replace(path: Path, data: bytes) -> None:
    unfinished = path.with_name(f".{secrets.token_hex(8)}")
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
