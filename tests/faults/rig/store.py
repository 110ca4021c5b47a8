"""Real servers to coordinate through, which tests stop, kill, fill, demote and restart.

Each has a unix socket, so that it comes back at the same address, and a TCP port for replication.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
import redis

from coldstart.bus import acl
from coldstart.bus.embedded import _binary

START_SECONDS = 10.0


class Store:
    """One server process; ``kind`` is ``valkey`` or ``redis``."""

    def __init__(self, place: Path, kind: str = "valkey", *options: str) -> None:
        place.mkdir()
        self.socket = place / "s"
        self.url = f"unix://coldstart:secret@{self.socket}"
        """Of a user that may do what workers must, and nothing else."""
        self.port = _free_port()
        self._command = [
            *(binary_of(kind), "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--unixsocket", str(self.socket), "--save", "", "--appendonly", "no"),
            *("--maxmemory-policy", "noeviction", *options),
        ]
        self._place = place
        self.start()

    def start(self) -> None:
        """Start it, empty."""
        self.socket.unlink(missing_ok=True)
        self.process = subprocess.Popen(self._command, cwd=self._place, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self.process.poll() is None, "the store ended while starting"
            assert time.monotonic() < deadline, "the store did not start"
            time.sleep(0.005)
        self.ask("ACL", "SETUSER", "coldstart", "on", ">secret", *acl.rule("cs"))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGSTOP: connections stay and nothing is answered."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def ask(self, *words: object) -> object:
        with redis.Redis(unix_socket_path=str(self.socket)) as client:
            return client.execute_command(*words)

    def _answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(self.socket))
                probe.sendall(b"PING\r\n")
                return bool(probe.recv(64))
        except OSError:
            return False


def binary_of(kind: str) -> str:
    """The server's binary; skips where it is not installed."""
    if kind == "valkey":
        return str(_binary())
    path = shutil.which("redis-server")
    if path is None:
        pytest.skip("redis-server is not on the PATH (apt-get install redis-server)")
    return path


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
