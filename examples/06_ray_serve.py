"""Serve with Ray Serve: a replica runs when its weights are right; a redeployment replaces all, one by one.

    pip install 'ray[serve]'
    COLDSTART_REDIS=redis://store:6379 python examples/06_ray_serve.py CHECKPOINT [PORT]
    curl localhost:8000/ -d '[1, 2, 3]'

Each line on stdin deploys anew; its end stops everything.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
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
    """Your model. Made in a worker thread, so that the replica's loop turns meanwhile."""
    from torch import nn

    return nn.Sequential(*(nn.Linear(FEATURES, FEATURES) for _ in range(8)))


def predict(module: nn.Module, inputs: list[float]) -> list[float]:
    import torch

    with torch.inference_mode():
        row = torch.tensor([inputs + [0.0] * (FEATURES - len(inputs))])
        return cast("list[float]", module(row)[0, :4].tolist())


class Model:
    """Ray runs all of it on a loop of the replica's own, and the weights' tasks run there, too."""

    async def __init__(self, checkpoint: str) -> None:  # type: ignore[misc]  # Ray waits for it
        self._log = logging.getLogger("ray.serve")
        self._held = AsyncExitStack()
        joining = coldstart.join(checkpoint, skeleton=make)
        self._replica = await self._held.enter_async_context(joining)  # requests come when this has returned
        report = self._replica.report
        self._log.info(f"coldstart: ready after {report.seconds:.1f} s by {report.path}")

    async def check_health(self) -> None:
        """Of this replica alone: one that asked the store or a peer would go down with it."""
        if not self._replica.verified:
            raise RuntimeError("the weights are not right")

    async def __call__(self, request: Request) -> list[float]:
        return await asyncio.to_thread(predict, self._replica.module, await request.json())

    async def __del__(self) -> None:
        """Ray calls it when the last request is answered, and waits for it; it has no hook before (docs/embed.md)."""
        began = time.monotonic()
        await self._held.aclose()
        self._log.info(f"coldstart: drained in {time.monotonic() - began:.1f} s")


deployment = serve.deployment(
    num_replicas=4,
    ray_actor_options={"num_cpus": 0.1},
    max_surge_percent=25,  # one new replica more, before an old one is stopped; without it, Ray stops first
    graceful_shutdown_timeout_s=60,  # requests in flight, then COLDSTART_DRAIN for transfers in flight
    graceful_shutdown_wait_loop_s=0.5,
)


def main(checkpoint: str, port: int) -> None:
    application = deployment(Model).bind(checkpoint)
    ray.init(include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"port": port})
    serve.run(application)
    print("deployed", flush=True)
    for _ in sys.stdin:
        serve.run(application)  # as serve deploy does with other settings, or another image
        print("deployed anew", flush=True)
    serve.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8000)
