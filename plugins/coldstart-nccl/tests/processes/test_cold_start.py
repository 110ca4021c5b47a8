"""A whole cold start over Gloo, named by the operator; and that nobody gets it who did not ask."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

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


DISTRUSTFUL = """
import sys
from coldstart.membership import Membership
from coldstart.signing import FleetSigner
Membership._tell = lambda self, reason, words, count: print(words, file=sys.stderr, flush=True)
proves = FleetSigner.proves
FleetSigner.proves = lambda self, key, mac, domain, *words: proves(
    self, "dropped" if domain == "gloo joiner" else key, mac, domain, *words
)
"""
"""A source that does not know the key by which joiners over gloo prove themselves; its log goes to standard error."""


@contextmanager
def worker(
    checkpoint: Path, name: str, environment: Mapping[str, str], before: str = ""
) -> Iterator[dict[str, object]]:
    """A worker process until the end of the block, and the report of its cold start."""
    command = [sys.executable, "-c", before + WORKER, str(checkpoint), name]
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
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    tensors = {"weight": torch.randn(3000, 1024), "bias": torch.randn(7), "scale": torch.tensor(2.5)}
    save_file(tensors, path / "model.safetensors")
    return path


@pytest.fixture
def keyed(installed: Mapping[str, str], tmp_path: Path) -> Mapping[str, str]:
    """The environment of a member of a fleet with keys, which digests by one of them."""
    path = str(tmp_path / "keys")
    command = [sys.executable, "-m", "coldstart.cli.main", "keys", "new", path]
    subprocess.run(command, env=installed, capture_output=True, timeout=50, check=True)
    return {**installed, "COLDSTART_KEYS": path, "COLDSTART_DIGEST": "blake2b"}


@pytest.mark.timeout(120)
def test_members_of_a_fleet_with_keys_start_from_each_other(checkpoint: Path, keyed: Mapping[str, str]) -> None:
    asked = {**keyed, "COLDSTART_NCCL_GLOO": "1", "COLDSTART_TRANSPORTS": "gloo"}
    with worker(checkpoint, "first", asked), worker(checkpoint, "second", asked) as second:
        assert (second["path"], second["transport"], second["verified"]) == ("peer", "gloo", True), second
        assert (second["detours"], second["refused"]) == ([], {})


@pytest.mark.timeout(120)
def test_who_is_refused_for_its_key_goes_on_to_the_next_transport(
    checkpoint: Path, keyed: Mapping[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    asked = {**keyed, "COLDSTART_NCCL_GLOO": "1", "COLDSTART_TRANSPORTS": "gloo,tcp"}
    with worker(checkpoint, "first", asked, DISTRUSTFUL), worker(checkpoint, "second", asked) as second:
        assert (second["path"], second["transport"], second["bytes_storage"]) == ("peer", "tcp", 0), second
        (detour,) = cast("list[str]", second["detours"])
        assert "wants a proof by a key that it knows (COLDSTART_KEYS)" in detour
    assert "gloo joiner signs with a key that is not known here" in capfd.readouterr().err


@pytest.mark.timeout(120)
def test_a_cold_start_over_gloo(checkpoint: Path, installed: Mapping[str, str]) -> None:
    asked = {**installed, "COLDSTART_NCCL_GLOO": "1", "COLDSTART_TRANSPORTS": "gloo"}
    with worker(checkpoint, "first", asked) as first, worker(checkpoint, "second", asked) as second:
        assert first["path"] == "storage"
        assert (second["path"], second["transport"], second["verified"]) == ("peer", "gloo", True), second
        assert second["bytes_peer"] == second["bytes_total"] == 3000 * 1024 * 4 + 28 + 4
        assert second["bytes_storage"] == 0
        assert second["detours"] == []


def test_both_are_listed_with_reasons(installed: Mapping[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "coldstart.cli.main", "plugins", "--json"],
        env=installed,
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    listed = {plugin["name"]: plugin for plugin in json.loads(done.stdout)["plugins"]}
    assert listed["gloo"]["usable"] is False
    assert "on request only" in listed["gloo"]["reason"]
    assert listed["nccl"]["distribution"] == "coldstart-nccl"
