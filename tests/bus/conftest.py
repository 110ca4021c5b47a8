"""Real servers for the tests of the bus: Valkey from the embedded package, and redis-server if installed."""

import itertools
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from coldstart.bus import acl
from coldstart.bus.embedded import _binary


class Server:
    """One server process on a unix socket, which tests may stop, kill, fill and restart."""

    _namespaces = itertools.count()

    def __init__(self, binary: str, directory: Path, *options: str) -> None:
        self.socket = directory / "server.sock"
        self.url = f"unix://coldstart:secret@{self.socket}"
        """Of a user that may do what workers must, and nothing else."""
        self._command = [binary, "--port", "0", "--unixsocket", str(self.socket), "--save", "", *options]
        self._directory = directory
        self.start()

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        self.process = subprocess.Popen(self._command, cwd=self._directory, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while not self._answers():
            assert self.process.poll() is None, "the server ended while starting"
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.005)
        self.ask("ACL", "SETUSER", "coldstart", "on", ">secret", *acl.rule("cs", "test*"))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def ask(self, *words: object) -> object:
        with redis.Redis(unix_socket_path=str(self.socket)) as client:
            return client.execute_command(*words)

    def namespace(self) -> str:
        """A namespace nobody used before, which is as good as an empty store."""
        return f"test{next(self._namespaces)}"

    def _answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(self.socket))
                probe.sendall(b"PING\r\n")
                return bool(probe.recv(64))
        except OSError:
            return False


def _found(kind: str) -> str:
    if kind == "valkey":
        return str(_binary())
    path = shutil.which("redis-server")
    if path is None:
        pytest.skip("redis-server is not on the PATH (apt-get install redis-server)")
    return path


@pytest.fixture(scope="session", params=["valkey", "redis"])
def shared_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that tests only use under a namespace of their own."""
    with tempfile.TemporaryDirectory(prefix="cs") as directory:
        server = Server(_found(request.param), Path(directory))
        yield server
        server.kill()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server to be mistreated."""
    server = Server(_found("valkey"), tmp_path)
    yield server
    server.kill()


@pytest.fixture
def cluster_url(tmp_path: Path) -> Iterator[str]:
    """A cluster of two nodes: it refuses scripts over several slots, and redirects half of the shards."""
    nodes: list[Server] = []
    ports = [_free_port() for _ in range(2)]
    try:
        for port in ports:
            directory = tmp_path / str(port)
            directory.mkdir()
            options = ("--port", str(port), "--cluster-enabled", "yes", "--cluster-port", str(_free_port()))
            nodes.append(Server(_found("valkey"), directory, *options))
        first, second = nodes
        first.ask("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
        second.ask("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
        second.ask("CONFIG", "SET", "cluster-announce-ip", "127.0.0.1")
        first.ask("CLUSTER", "MEET", "127.0.0.1", ports[1], _bus_port(second))
        deadline = time.monotonic() + 15
        while not all("cluster_state:ok" in str(node.ask("CLUSTER", "INFO")) for node in nodes):
            assert time.monotonic() < deadline, "the cluster did not form"
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{ports[0]}"
    finally:
        for node in nodes:
            node.kill()


def _bus_port(node: Server) -> int:
    found = node.ask("CONFIG", "GET", "cluster-port")
    return int(dict(found)[b"cluster-port"] if isinstance(found, dict) else found[1])


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
