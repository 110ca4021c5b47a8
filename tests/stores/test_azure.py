"""Azure's API, on Azurite: the tests of S3, on another store's listings, checksums, signatures and errors."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("obstore", reason="obstore is not installed")

from coldstart import config
from coldstart.config import Settings
from coldstart.shelves.location import ShelfSettings
from coldstart.shelves.open import find
from tests.stores import test_cold_starts as starts
from tests.stores import test_reading, test_transport
from tests.stores.conftest import BUCKET, Store, prefix_of
from tests.stores.gateway import gateway

ACCOUNT, KEY = "reader", base64.b64encode(b"a key of the tests").decode()
AZURITE = Path(sys.executable).parent.parent / "azurite/node_modules/azurite/dist/src/blob/main.js"
"""Where ``make`` puts it."""
VERSION = "2021-08-06"
"""Of the protocol."""


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server with one container."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here, which Azurite needs")
    if not AZURITE.exists():
        pytest.skip(f"no Azurite here: npm install --prefix {AZURITE.parents[5]} azurite")
    words = (
        "--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence", "--disableTelemetry",
        "--skipApiVersionCheck", "--silent",
    )  # fmt: skip
    environment = {**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}
    home = tmp_path_factory.mktemp("azurite")
    with subprocess.Popen(
        [node, AZURITE, *words], env=environment, cwd=home, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            port = next((int(line.rpartition(":")[2]) for line in process.stdout if "successfully listens" in line), 0)
            assert port, f"Azurite ended with {process.wait()}"
            _make_container(port)
            yield port
        finally:
            process.kill()


@pytest.fixture
def store(azurite: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Store]:
    """As that of S3."""
    with gateway(azurite) as before:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{before.url}/{ACCOUNT}")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
        monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
        prefix = prefix_of(request)
        yield Store(before, f"az://{BUCKET}/{prefix}", prefix, f"/{ACCOUNT}/{BUCKET}", partial(_put, azurite))


def _put(port: int, key: str, content: bytes) -> None:
    """Past the gateway."""
    obstore = pytest.importorskip("obstore")
    there = obstore.store.AzureStore(
        BUCKET,
        account_name=ACCOUNT,
        account_key=KEY,
        endpoint=f"http://127.0.0.1:{port}/{ACCOUNT}",
        client_options={"allow_http": True},
    )
    obstore.put(there, key, content)


def _make_container(port: int) -> None:
    """Signed with the shared key, as the protocol has it: the method, eleven empty headers, ours, the resource."""
    date, path = formatdate(usegmt=True), f"/{ACCOUNT}/{BUCKET}"
    ours = (f"x-ms-date:{date}", f"x-ms-version:{VERSION}")
    words = "\n".join(("PUT", *[""] * 11, *ours, f"/{ACCOUNT}{path}", "restype:container"))
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), words.encode(), hashlib.sha256)).decode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}?restype=container",
        method="PUT",
        headers={
            "x-ms-date": date,
            "x-ms-version": VERSION,
            "Content-Length": "0",
            "Authorization": f"SharedKey {ACCOUNT}:{signature}",
        },
    )
    urllib.request.urlopen(request, timeout=10).close()


_small_requests = test_transport._small_requests
directory = test_reading.directory


@pytest.fixture
def settings(tmp_path: Path) -> ShelfSettings:
    return ShelfSettings(mirrors=tmp_path / "mirrors", allow_http=True, retry_seconds=2.0, io_seconds=1.0)


class TestHeaders(test_reading.TestHeaders):
    """What is read of a checkpoint."""

    def test_the_fingerprint_follows_the_stores_checksum(
        self, store: Store, directory: Path, settings: ShelfSettings
    ) -> None:
        """Azure's ETag is of the write, not of the content: what is written again is another version."""
        content = (directory / "model.safetensors").read_bytes()
        first = find(store.url, settings).checkpoint.fingerprint
        assert find(store.url, settings).checkpoint.fingerprint == first
        store.put("model.safetensors", content)
        assert find(store.url, settings).checkpoint.fingerprint != first


class TestRefusals:
    """What another store words in its own way."""

    def test_a_wrong_key(self, store: Store, settings: ShelfSettings, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"another").decode())
        message = test_reading.refused(store.url, settings)
        assert f"access to {store.url} was refused (Auth" in message
        assert "AZURE_STORAGE_ACCOUNT_KEY" in message

    def test_no_container(self, store: Store, settings: ShelfSettings) -> None:
        assert "there is no bucket 'other'" in test_reading.refused("az://other/model", settings)

    def test_nothing_there(self, store: Store, settings: ShelfSettings) -> None:
        assert f"no checkpoint at {store.url}: nothing is there" in test_reading.refused(store.url, settings)


class TestObjects(test_transport.TestObjects):
    """The contract of transports."""


class TestBytes(test_transport.TestBytes):
    """Only what is missing."""


class TestEnds(test_transport.TestEnds):
    """A cancelled pull drops its requests."""


class TestStarts:
    """Whole cold starts."""

    @pytest.fixture
    def settings(self, store: Store, tmp_path: Path) -> Settings:
        return config.load({"directory": str(tmp_path / "v"), "drain": 2.0})

    @pytest.fixture
    def directory(self, store: Store, tmp_path: Path, write_checkpoint: starts.Write) -> Path:
        made = write_checkpoint(tmp_path / "m", mib=12)
        store.upload(made)
        return made

    async def test_each_byte_once(self, store: Store, settings: Settings, directory: Path) -> None:
        await starts.test_four_workers_fetch_each_byte_once(store, settings, directory)

    async def test_a_failed_peer(self, store: Store, settings: Settings, directory: Path) -> None:
        await starts.test_after_a_failed_peer_only_what_is_missing_is_fetched(store, settings, directory)

    async def test_an_overwritten_one(self, store: Store, settings: Settings, directory: Path) -> None:
        await starts.test_a_checkpoint_that_is_overwritten_fails_the_start_by_name(store, settings, directory)
