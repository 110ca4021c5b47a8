"""Whole cold starts from GPU to GPU: what the report says of the path, and that the weights are the right ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from coldstart_transfer_engine import library
from safetensors.torch import save_file

from coldstart.testing.keyed_contract import keys_file

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.processes,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices on this machine"),
    pytest.mark.timeout(300),
]

WORKER = """
import sys, anyio, msgspec, torch, coldstart
from safetensors.torch import load_file
async def main(checkpoint, name, device):
    async with coldstart.join(checkpoint, skeleton="tensors", worker=name, device=device) as replica:
        print(msgspec.json.encode(replica.report).decode(), flush=True)
        for tensor, right in load_file(checkpoint + "/model.safetensors").items():
            assert torch.equal(replica.module.get_parameter(tensor).cpu(), right), tensor
        print("right", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
anyio.run(main, *sys.argv[1:])
"""


@contextmanager
def worker(checkpoint: Path, name: str, device: str, environment: Mapping[str, str]) -> Iterator[dict[str, object]]:
    """A worker process until the end of the block, and the report of its cold start."""
    command = [sys.executable, "-c", WORKER, str(checkpoint), name, device]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            found = json.loads(process.stdout.readline())
            print(f"\n{name} on {device}: {json.dumps(found, indent=1)}")
            assert process.stdout.readline() == "right\n"
            yield found
        finally:
            process.stdin.close()
            process.wait(60)


def keyed(environment: Mapping[str, str], path: Path) -> Mapping[str, str]:
    """``environment`` for members of a fleet with keys, which digest by one of them."""
    return {**environment, "COLDSTART_KEYS": str(keys_file(path)), "COLDSTART_DIGEST": "blake2b"}


@pytest.mark.parametrize("with_keys", [False, True])
def test_a_cold_start_from_gpu_to_gpu(with_keys: bool, tmp_path: Path, installed: Mapping[str, str]) -> None:
    if "nvlink" not in library.routes("cuda:1"):
        pytest.skip(f"{library.version()} is built without NVLink")
    checkpoint = tmp_path / "model"
    checkpoint.mkdir()
    tensors = {f"layer{number}": torch.randn(4096, 8192 + number).to(torch.bfloat16) for number in range(24)}
    save_file(tensors, checkpoint / "model.safetensors")
    member = keyed(installed, tmp_path / "keys") if with_keys else installed
    preferring = {**member, "COLDSTART_TRANSPORTS": "transfer-engine,tcp"}
    with (
        worker(checkpoint, "first", "cuda:0", preferring) as first,
        worker(checkpoint, "second", "cuda:1", preferring) as second,
    ):
        assert first["path"] == "storage"
        assert (second["path"], second["transport"], second["route"]) == ("peer", "transfer-engine", "nvlink")
        assert (second["verified"], second["bytes_storage"], second["detours"]) == (True, 0, [])
