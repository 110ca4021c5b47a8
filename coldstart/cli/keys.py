"""``coldstart keys``: make a fleet's file of keys, change the keys in steps, look at it.

Decides in which order keys are changed so that no worker ever meets one that it does not know. Keys themselves are
never shown. What the file looks like is decided in ``coldstart/keyring.py``.

A change of the signing key takes three runs; after each one the file goes to all workers, which read it anew:

    1  a new key is added last      everybody believes it, nobody signs with it
    2  it becomes the first         everybody signs with it, the old one is still believed
    3  the old ones are dropped

The digest key stays: another one is another digest, and workers with different ones exchange nothing.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

import msgspec

from coldstart import config
from coldstart.cli.output import emit, say
from coldstart.errors import ConfigError
from coldstart.keyring import made, read, text_of
from coldstart.seals import Keys

MODE = 0o600


class Shown(msgspec.Struct, frozen=True):
    """A file of keys as ``--json`` tells it: names only."""

    path: str
    signs: str
    believed: tuple[str, ...]
    digest: str
    next: str


def new(path: Path, *, json: bool) -> None:
    """Write a file with one signing key and a digest key; raises ConfigError where there is something already, or
    nothing can be written: then nothing is left, either.
    """
    keys = Keys((made(),), made())
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    except FileExistsError:
        advice = "name a file in it" if path.is_dir() else "change it with: coldstart keys rotate"
        raise ConfigError(f"{path} is there already", advice=advice) from None
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        _write(descriptor, keys)
    except OSError as error:  # half a file would be in the way of the next try
        with suppress(OSError):
            path.unlink()
        raise _unwritable(path, error) from error
    _show(path, keys, json=json)


def rotate(path: Path, *, json: bool) -> None:
    """Take the next step of a change; the file is replaced in one go."""
    keys = read(path)
    _replace(path, stepped(keys))
    _show(path, read(path), json=json)


def check(path: Path | None, *, json: bool) -> None:
    """Read a file as a worker would, and say what is in it."""
    chosen = path or Path(config.load().keys)
    if chosen == Path():
        raise ConfigError("no file of keys is named", advice="give one, or set COLDSTART_KEYS")
    _show(chosen, read(chosen), json=json)


def stepped(keys: Keys) -> Keys:
    """The keys after the next step. A file with several is in the middle of a change.

    The youngest is the one that was added last: either it is still last, or it signs and the others are over.
    """
    signing = keys.signing
    if len(signing) == 1:
        return Keys((*signing, made()), keys.digest)
    if _is_younger(signing[0].ident, signing[-1].ident):
        return Keys(signing[:1], keys.digest)
    return Keys((signing[-1], *signing[:-1]), keys.digest)


def _is_younger(one: str, other: str) -> bool:
    """By the moment that names of keys begin with."""
    return one.partition("-")[0] > other.partition("-")[0]


def _next(keys: Keys) -> str:
    signing = keys.signing
    if len(signing) == 1:
        return "nothing: no change is under way"
    if _is_younger(signing[0].ident, signing[-1].ident):
        return "give this file to all workers; then 'coldstart keys rotate' drops the old key"
    return "give this file to all workers; then 'coldstart keys rotate' lets the new key sign"


def _show(path: Path, keys: Keys, *, json: bool) -> None:
    shown = Shown(
        str(path),
        keys.first.ident,
        tuple(key.ident for key in keys.signing),
        keys.digest.ident if keys.digest is not None else "",
        _next(keys),
    )
    if json:
        emit(shown)
        return
    say(f"{path}: signs with {shown.signs}, believes {', '.join(shown.believed)}")
    say(f"digest key: {shown.digest or 'none'}; next: {shown.next}")


def _replace(path: Path, keys: Keys) -> None:
    target = path.resolve()
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        mode = target.stat().st_mode & 0o777
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
        _write(descriptor, keys, mode)
        os.replace(beside, target)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise _unwritable(path, error) from error


def _write(descriptor: int, keys: Keys, mode: int = MODE) -> None:
    """Have the keys on the disk, and close; a full disk is told here and not later."""
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, mode)
        file.write(text_of(keys))
        file.flush()
        os.fsync(descriptor)


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot write {path}: {error.strerror or error}", advice="name a file that you may write")
