"""Any function that makes a module is skeleton enough: its parameters are never initialised twice.

    python examples/02_any_module.py
"""

from __future__ import annotations

import tempfile

import anyio
import torch
from safetensors.torch import save_file
from torch import nn

import coldstart


def make() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        trained = make()
        save_file(trained.state_dict(), f"{directory}/model.safetensors")
        async with (
            coldstart.join(directory, skeleton=make, worker="first"),
            coldstart.join(directory, skeleton=make, worker="second") as second,
        ):
            x = torch.randn(1, 256)
            same = torch.equal(second.module(x), trained(x))
            print(f"{second.report.path}, same output: {same}")


if __name__ == "__main__":
    anyio.run(main)
