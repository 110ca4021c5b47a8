"""A whole cold start over transfer-engine, chosen by its entry point, and how to leave it out again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

pytestmark = pytest.mark.processes

WORKER = """
import sys, anyio, msgspec, coldstart
async def main(checkpoint, name):
    async with coldstart.join(checkpoint, skeleton="tensors", worker=name) as replica:
        print(msgspec.json.encode(replica.report).decode(), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
anyio.run(main, *sys.argv[1:])
"""


@contextmanager
def worker(checkpoint: Path, name: str, environment: Mapping[str, str]) -> Iterator[dict[str, object]]:
    """A worker process until the end of the block, and the report of its cold start."""
    command = [sys.executable, "-c", WORKER, str(checkpoint), name]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.stdin.close()
            process.wait(20)


@pytest.fixture
def keyed(installed: Mapping[str, str], tmp_path: Path) -> Mapping[str, str]:
    """The environment of a member of a fleet with keys, which digests by one of them."""
    path = str(tmp_path / "keys")
    command = [sys.executable, "-m", "coldstart.cli.main", "keys", "new", path]
    subprocess.run(command, env=installed, capture_output=True, timeout=50, check=True)
    return {**installed, "COLDSTART_KEYS": path, "COLDSTART_DIGEST": "blake2b"}


@pytest.mark.timeout(120)
def test_members_of_a_fleet_with_keys_start_from_each_other(tmp_path: Path, keyed: Mapping[str, str]) -> None:
    checkpoint = tmp_path / "model"
    checkpoint.mkdir()
    save_file({"weight": torch.randn(3000, 1024)}, checkpoint / "model.safetensors")
    asked = {**keyed, "COLDSTART_TRANSPORTS": "transfer-engine"}
    with worker(checkpoint, "first", asked), worker(checkpoint, "second", asked) as second:
        assert (second["path"], second["transport"], second["verified"]) == ("peer", "transfer-engine", True), second
        assert (second["detours"], second["refused"]) == ([], {})


@pytest.mark.timeout(120)
def test_a_cold_start_over_the_transfer_engine(tmp_path: Path, installed: Mapping[str, str]) -> None:
    checkpoint = tmp_path / "model"
    checkpoint.mkdir()
    tensors = {"weight": torch.randn(3000, 1024), "bias": torch.randn(7), "scale": torch.tensor(2.5)}
    save_file(tensors, checkpoint / "model.safetensors")
    with worker(checkpoint, "first", installed) as first:
        assert first["path"] == "storage"
        # The joiner's order counts; here both run over TCP, and then ours comes first.
        choices = [("", "tcp"), ("transfer-engine,tcp", "transfer-engine"), ("tcp", "tcp")]
        for number, (transports, expected) in enumerate(choices):
            chosen = {**installed, "COLDSTART_TRANSPORTS": transports}
            with worker(checkpoint, f"joiner{number}", chosen) as report:
                assert (report["path"], report["transport"]) == ("peer", expected), report
                assert report["route"] == ("tcp" if expected == "transfer-engine" else "")
                assert report["verified"] is True
                assert report["against"] == "published truth"
                assert report["bytes_peer"] == report["bytes_total"] == sum(each.nbytes for each in tensors.values())
                assert report["bytes_storage"] == 0
                assert report["detours"] == []


def test_it_is_listed(installed: Mapping[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "coldstart.cli.main", "plugins", "--json"],
        env=installed,
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    (listed,) = [plugin for plugin in json.loads(done.stdout)["plugins"] if plugin["name"] == "transfer-engine"]
    assert listed["kind"] == "transport"
    assert listed["distribution"] == "coldstart-transfer-engine"
    assert listed["usable"] is True
