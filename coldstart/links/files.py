"""Link rates on disk: one small file for each path, replaced whole.

Decides what of a directory is believed. Many processes may write at once: a file has one path's rate, so the
worst that a race costs is one measurement. Files are nobody's promise: one that is damaged, too large, not ours, or
from the future is no rate, and is written anew when there is one. It must not know what rates are used for
(``memory.py``). Everything here blocks.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path as File
from typing import Annotated, Literal

import msgspec

from coldstart.links.rates import WEEK, Path, Rate

MAX_BYTES = 4096
MAX_FILES = 4096
"""More paths than that are not looked at."""

_Name = Annotated[str, msgspec.Meta(max_length=256)]
_Rate = Annotated[float, msgspec.Meta(gt=0, le=1e15)]
_Moment = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file's content, as JSON."""

    version: Literal[1]
    here: _Name
    device: _Name
    there: _Name
    remote: _Name
    transport: _Name
    route: _Name
    bytes_per_second: _Rate
    origin: Literal["probe", "transfer"]
    at: _Moment

    @property
    def path(self) -> Path:
        return Path(self.here, self.device, self.there, self.remote, self.transport, self.route)


class Trouble(Exception):
    """Why a file, or a directory of them, is not used."""


def load(directory: File, complain: Callable[[str], None]) -> Mapping[Path, Rate]:
    """Every rate in ``directory`` that can be believed; what cannot is told to ``complain``, in words. Never raises."""
    found: dict[Path, Rate] = {}
    try:
        _check(os.stat(directory), directory)
        names = sorted(name for name in os.listdir(directory) if name.endswith(".json"))[:MAX_FILES]
    except FileNotFoundError:
        return found
    except (OSError, Trouble) as error:
        complain(f"{directory}: {error}")
        return found
    for name in names:
        try:
            entry = _read(directory / name)
        except FileNotFoundError:  # tidied up by another process
            continue
        except (OSError, Trouble, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            complain(f"{directory / name}: {error}")
            continue
        if name == _name(entry.path):
            found[entry.path] = Rate(entry.bytes_per_second, entry.origin, entry.at)
    return found


def save(directory: File, path: Path, rate: Rate) -> None:
    """Write one path's rate; whoever reads meanwhile gets the old one or the new one. Raises OSError, Trouble."""
    if rate.origin == "none":
        return
    os.makedirs(directory, mode=0o700, exist_ok=True)
    _check(os.stat(directory), directory)
    fields = {**msgspec.structs.asdict(path), **msgspec.structs.asdict(rate), "version": 1}
    entry = msgspec.convert(fields, _Entry)
    unfinished = directory / f"{secrets.token_hex(8)}.part"
    try:
        number = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(number, "wb") as file:
            file.write(msgspec.json.encode(entry))
        os.replace(unfinished, directory / _name(path))
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise


def tidy(directory: File) -> None:
    """Remove what nobody has written to for a week. Never raises."""
    with suppress(OSError):
        before = time.time() - WEEK
        for file in directory.iterdir():
            if file.suffix in (".json", ".part") and file.lstat().st_mtime < before:
                with suppress(OSError):
                    file.unlink()


def _read(file: File) -> _Entry:
    # Nonblocking, so that a pipe of that name cannot keep us.
    number = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(number, "rb") as opened:
        facts = os.fstat(number)
        if not stat.S_ISREG(facts.st_mode):
            raise Trouble("not a file")
        _check(facts, file)
        data = opened.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise Trouble(f"over {MAX_BYTES} bytes")
    return msgspec.json.decode(data, type=_Entry)


def _check(facts: os.stat_result, which: File) -> None:
    """Only we may have written there; a rate that others choose could lead all our transfers over a slow link."""
    if facts.st_uid != os.geteuid():
        raise Trouble("belongs to another user")
    if facts.st_mode & 0o022:
        raise Trouble(f"others may write to it: chmod go-w {which}")


def _name(path: Path) -> str:
    return f"{hashlib.blake2b(msgspec.msgpack.encode(path), digest_size=16).hexdigest()}.json"
