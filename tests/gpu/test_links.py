"""What the doctor finds on GPUs that are here."""

from __future__ import annotations

import pytest
import torch

from coldstart.cli.checks import paths
from coldstart.config import Settings
from coldstart.skeletons.machine_facts import torch_facts

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_peers_are_those_that_torch_can_reach() -> None:
    facts = torch_facts()
    assert len(facts.gpus) == torch.cuda.device_count()
    for index, gpu in enumerate(facts.gpus):
        assert index not in gpu.peers
        assert all(torch.cuda.can_device_access_peer(index, other) for other in gpu.peers)
        assert gpu.uuid


async def test_the_paths_of_device_memory_are_told() -> None:
    said: list[str] = []
    view = await paths.gather(Settings(cache="none"), "127.0.0.1", ("tcp",), said.append)
    checks = {check.name: check for check in paths.checks(view)}
    assert "CUDA" in checks["gpus"].finding
    assert "cuda memory over tcp" in checks["path tcp"].finding
    assert {"path nccl", "path transfer-engine"} <= checks.keys(), "also what is missing"
    assert ("gpu links" in checks) is (len(view.torch.gpus) > 1)
    assert said == []
