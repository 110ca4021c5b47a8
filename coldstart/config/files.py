"""The file of settings: TOML, one key per setting, no tables.

Decides which file is read and in which line a key stands. What its values mean is for ``loading.py`` to say.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from coldstart.config import places
from coldstart.errors import ConfigError

NONE = "none"
"""Instead of a path: no file is read."""

MAX_BYTES = 1 << 20
_MAKE = f"make it, or say {NONE!r} for none"
_ADVICE = "correct it, or name another one in COLDSTART_CONFIG"


class File(msgspec.Struct, frozen=True):
    """A file of settings as it was read: values by key, and the line in which each key stands, from 1."""

    path: Path
    values: Mapping[str, object]
    lines: Mapping[str, int]

    def where(self, key: str) -> str:
        """``path:line`` of a key."""
        line = self.lines.get(key)
        return f"{self.path}:{line}" if line else str(self.path)


def find(named: str | Path, *, standard: bool) -> File | None:
    """The file called ``named``; without a name the first of the ``standard`` places that there is.

    Raises:
        ConfigError: the named file is not there; a file cannot be read, or is no TOML.
    """
    if str(named) == NONE:
        return None
    if str(named):
        return read(places.expanded(str(named)))
    for path in places.files() if standard else ():
        if places.is_file(path):
            return read(path)
    return None


def read(path: Path) -> File:
    """The file at ``path``; raises ConfigError."""
    try:
        with path.open("rb") as source:
            data = source.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigError(f"the file of settings {path} has more than {MAX_BYTES} bytes", advice=_ADVICE)
        text = data.decode()
        values = tomllib.loads(text)
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file of settings {path}", advice=_MAKE) from error
    except OSError as error:
        raise ConfigError(f"the file of settings {path} cannot be read: {error.strerror}", advice=_ADVICE) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the file of settings {path} is not UTF-8", advice=_ADVICE) from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"the file of settings {path} is not TOML: {error}", advice=_ADVICE) from error
    lines = text.splitlines()
    return File(path, values, {key: line for key in values if (line := _line(lines, key))})


def _line(lines: list[str], key: str) -> int:
    """Where ``key`` is given a value, or is a table; 0: not found."""
    pattern = re.compile(rf"\s*\[*\s*(['\"]?){re.escape(key)}\1\s*[=.\]]")
    return next((number for number, line in enumerate(lines, 1) if pattern.match(line)), 0)
