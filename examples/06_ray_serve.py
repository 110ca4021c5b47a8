"""Serve with Ray Serve: a replica runs when its weights are right; a redeployment replaces all, one by one.

    pip install 'ray[serve]'
    python examples/06_ray_serve.py CHECKPOINT [PORT]
    curl localhost:8000/ -d '[1, 2, 3]'

Each line on stdin deploys anew, as ``serve deploy`` does with another configuration; its end stops everything.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, cast

import ray
from ray import serve

import coldstart

if TYPE_CHECKING:
    from starlette.requests import Request
    from torch import nn

FEATURES = 1024


def make() -> nn.Module:
    """Your model. Made in a worker thread, so that Ray's loop turns meanwhile."""
    from torch import nn

    return nn.Sequential(*(nn.Linear(FEATURES, FEATURES) for _ in range(8)))


def predict(module: nn.Module, inputs: list[float]) -> list[float]:
    import torch

    with torch.inference_mode():
        row = torch.tensor([inputs + [0.0] * (FEATURES - len(inputs))])
        return cast("list[float]", module(row)[0, :4].tolist())


@serve.deployment(
    num_replicas=4,
    ray_actor_options={"num_cpus": 0.2},
    health_check_period_s=2,
    graceful_shutdown_timeout_s=60,  # requests in flight, then COLDSTART_DRAIN for transfers in flight
    graceful_shutdown_wait_loop_s=0.5,
)
class Model:
    """Ray runs all of it on the loop of the replica's own thread, where the weights' tasks run, too."""

    async def __init__(self, checkpoint: str, redis: str) -> None:
        self._held = AsyncExitStack()
        joining = coldstart.join(checkpoint, skeleton=make, redis=redis)
        self._replica = await self._held.enter_async_context(joining)  # Ray sends requests when this has returned

    async def check_health(self) -> None:
        """Of this replica alone: one that asked the store or a peer would go down with it."""
        if not self._replica.verified:
            raise RuntimeError("the weights are not right")

    async def __call__(self, request: Request) -> list[float]:
        return await asyncio.to_thread(predict, self._replica.module, await request.json())

    def reconfigure(self, config: dict[str, str]) -> None:
        """Nothing changes in a replica that runs."""

    async def path(self) -> str:
        """Where the weights came from, for whoever operates this."""
        return self._replica.report.path

    async def __del__(self) -> None:
        """Ray calls it when the last request has been answered, and waits for it."""
        await self._held.aclose()


def main(checkpoint: str, port: int) -> None:
    redis = os.environ["COLDSTART_REDIS"]  # workers of several hosts need a store that all of them reach
    ray.init(include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"port": port})
    version = 0
    print(f"version {version}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8000)
