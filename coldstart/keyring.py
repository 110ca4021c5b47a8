"""The fleet's keys, from a file that may be replaced while workers run.

Decides what such a file looks like and who may be able to read it, and makes new ones. One key a line::

    sign   20261130T190000123456-1f2e  <64 hexadecimal digits>    # the first one signs, all of them are believed
    digest 20261130T190000123457-9a8b  <64 hexadecimal digits>    # for COLDSTART_DIGEST=blake3, one at most

A key never stands in a setting or on a command line, where other processes can read it, nor in an error. What
keys are used for is decided in ``seals.py`` and ``keyed.py``.
"""

from __future__ import annotations

import re
import secrets
import stat
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from coldstart.errors import ConfigError
from coldstart.seals import SECRET_BYTES, Key, Keys
from coldstart.telemetry import logger

LOOK_SECONDS = 1.0
"""The file is looked at at most so often; a change is known a moment later."""

MAX_FILE_BYTES = 64 * 1024
MAX_KEYS = 8
"""Signing keys at one time: two while they are changed, more by accident."""

_LINE = re.compile(r"\A(sign|digest)\s+([A-Za-z0-9-]{1,32})\s+([0-9a-f]{64})\Z")
_ADVICE = "write 'sign NAME KEY' or 'digest NAME KEY', a key a line, as 'coldstart keys new' does"


def read(path: Path) -> Keys:
    """The keys in a file. Blocks.

    Raises:
        ConfigError: unreadable, malformed, without a signing key, or open to other users.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"the file of keys {path} is not a file")
        if found.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
            raise ConfigError(
                f"the file of keys {path} is open to other users",
                advice=f"run: chmod o-rwx,g-w {path} (Kubernetes: defaultMode 0440)",
            )
        if found.st_size > MAX_FILE_BYTES:
            raise ConfigError(f"the file of keys {path} has {found.st_size} bytes, at most {MAX_FILE_BYTES} are read")
        return parse(path.read_text(encoding="utf-8"), path)
    except OSError as error:
        raise ConfigError(f"cannot read the file of keys {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the file of keys {path} is not text", advice=_ADVICE) from error


def parse(text: str, path: Path) -> Keys:
    """The keys in a file's ``text``; raises ConfigError, which never quotes a line."""
    signing: list[Key] = []
    digest: Key | None = None
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        match = _LINE.match(words)
        if match is None:
            raise ConfigError(f"line {number} of {path} is no key", advice=_ADVICE)
        use, ident, secret = match.groups()
        key = Key(ident, bytes.fromhex(secret))
        known = signing if digest is None else [*signing, digest]
        if any(key.ident == other.ident or key.secret == other.secret for other in known):
            raise ConfigError(f"line {number} of {path} has the name or the secret of another key")
        if use == "sign":
            signing.append(key)
        elif digest is None:
            digest = key
        else:
            raise ConfigError(f"line {number} of {path} is a second digest key", advice="keep one")
    if not 1 <= len(signing) <= MAX_KEYS:
        raise ConfigError(f"{path} has {len(signing)} signing keys", advice=f"keep 1 to {MAX_KEYS}")
    return Keys(tuple(signing), digest)


def made(now: datetime | None = None) -> Key:
    """A new key, named by the moment and by chance."""
    return Key(f"{now or datetime.now(UTC):%Y%m%dT%H%M%S%f}-{secrets.token_hex(2)}", secrets.token_bytes(SECRET_BYTES))


def text_of(keys: Keys) -> str:
    """A file of these keys."""
    lines = [f"sign   {key.ident}  {key.secret.hex()}" for key in keys.signing]
    if keys.digest is not None:
        lines.append(f"digest {keys.digest.ident}  {keys.digest.secret.hex()}")
    return "\n".join(("# Keys of a coldstart fleet: secret. The first 'sign' signs, all are believed.", *lines, ""))


class Keyring:
    """The keys that count now. Any thread.

    A file that has become unreadable or malformed changes nothing and is warned of, once for each of its states.

    Raises:
        ConfigError: as :func:`read` does.
    """

    def __init__(self, path: Path, *, now: Callable[[], float] = time.monotonic) -> None:
        self._path, self._now = path, now
        self._lock = threading.Lock()
        self._state = self._look()
        self._keys = read(path)
        self._looked = now()

    def __call__(self) -> Keys:
        with self._lock:
            now = self._now()
            if now - self._looked >= LOOK_SECONDS:
                self._looked = now
                state = self._look()
                if state != self._state:
                    self._state = state
                    self._reread()
            return self._keys

    def _reread(self) -> None:
        try:
            keys = read(self._path)
        except ConfigError as error:
            logger().warning("keys kept as they were", reason=str(error))
            return
        if keys.digest != self._keys.digest:
            logger().warning("another digest key counts from the next start on", path=str(self._path))
        self._keys = keys
        logger().info("keys read anew", signs=keys.first.ident, believed=[key.ident for key in keys.signing])

    def _look(self) -> tuple[int, ...]:
        """What changes when the file does; a file that is gone is a state, too."""
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode
