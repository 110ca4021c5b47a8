"""Where this user and this machine keep things: settings, rates of links, the embedded store.

Decides directories by the XDG base directory specification (specifications.freedesktop.org/basedir-spec). It must not
create any of them. ``files.py`` reads the settings; who writes to the others makes them.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

SYSTEM = Path("/etc/coldstart/config.toml")
"""Settings of all users of a machine."""


def files() -> tuple[Path, ...]:
    """Where settings may be, the user's own first."""
    home = _home("XDG_CONFIG_HOME", ".config")
    return (home / "coldstart" / "config.toml", SYSTEM) if home is not None else (SYSTEM,)


def cache() -> Path | None:
    """The user's cache directory; None for a user without a home."""
    home = _home("XDG_CACHE_HOME", ".cache")
    return home / "coldstart" if home is not None else None


def runtime() -> Path:
    """The embedded Valkey's directory: one per user, on a path short enough for a socket.

    A runtime directory of somebody else, which ``sudo`` and ``su`` may leave in the environment, is not taken.
    """
    chosen = os.environ.get("XDG_RUNTIME_DIR", "")
    if chosen and _is_own_directory(Path(chosen)):
        return Path(chosen) / "coldstart"
    return Path(tempfile.gettempdir()) / f"coldstart-{os.getuid()}"


def is_file(path: Path) -> bool:
    """Whether a file is there, as far as this user can see: the home may be another user's, as in many containers."""
    return os.path.isfile(path)  # Path.is_file raises where a directory may not be searched


def expanded(path: str) -> Path:
    """``path`` with ``~`` for the user's home, where there is one."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _is_own_directory(path: Path) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _home(variable: str, below: str) -> Path | None:
    chosen = os.environ.get(variable, "")
    try:
        return Path(chosen) if Path(chosen).is_absolute() else Path.home() / below
    except RuntimeError:
        return None
