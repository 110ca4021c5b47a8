"""Keeps one Valkey server for as long as anybody on this machine uses it; runs as a script.

    python -I -S keeper.py DIRECTORY SERVER-BINARY

Decides when the embedded server ends. Every user holds a shared lock on ``users.lock``; the keeper
waits for the exclusive one and so gets it when the last user has left, however that one died. It
must not import anything but the standard library: it outlives the process that started it and should
cost a few MiB. ``embedded.py`` starts it and decides when one is needed.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

SOCKET = "valkey.sock"
USERS_LOCK = "users.lock"
KEEPER_LOCK = "keeper.lock"

_PR_SET_PDEATHSIG = 1
_STOP_SECONDS = 5.0
"""The embedded server ends within this of being asked, or is killed; it has nothing to save."""


def main(directory: str, binary: str) -> int:
    os.chdir(directory)
    os.umask(0o077)
    kept = _open(KEEPER_LOCK)
    try:
        fcntl.flock(kept, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # another keeper was quicker
    if os.fork() > 0:
        return 0  # the starter sees the lock taken, and has no zombie to reap later
    _remove_socket()
    system = ctypes.CDLL(None)
    server = subprocess.Popen([binary, *_settings()], preexec_fn=lambda: _die_with_the_keeper(system))
    stopping = threading.Event()
    threading.Thread(target=_leave_with, args=(server, stopping), daemon=True).start()

    users = _open(USERS_LOCK)
    fcntl.flock(users, fcntl.LOCK_EX)

    # Nobody is left, and nobody can come before this process has ended and dropped the lock.
    stopping.set()
    server.terminate()
    try:
        server.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    _remove_socket()
    return 0


def _settings() -> list[str]:
    return [
        *("--port", "0"),
        *("--unixsocket", SOCKET),
        *("--unixsocketperm", "700"),
        *("--save", ""),
        *("--appendonly", "no"),
        *("--maxmemory-policy", "noeviction"),
        *("--daemonize", "no"),
    ]


def _die_with_the_keeper(system: ctypes.CDLL) -> None:
    """In the child, before exec: a server must not outlive a keeper that was killed."""
    if sys.platform == "linux":
        system.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _leave_with(server: subprocess.Popen[bytes], stopping: threading.Event) -> None:
    """If the server dies while it is used, end at once, so that a user starts another."""
    status = server.wait()
    if not stopping.is_set():
        print(f"keeper: the server ended with status {status} while in use", file=sys.stderr, flush=True)  # noqa: T201
        _remove_socket()
        os._exit(1)


def _remove_socket() -> None:
    with suppress(FileNotFoundError):
        os.unlink(SOCKET)


def _open(name: str) -> int:
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
