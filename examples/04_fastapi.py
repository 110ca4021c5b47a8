"""Serve with FastAPI: alive at once, ready when the weights are right, replaced without losing a request.

    pip install fastapi uvicorn
    python examples/04_fastapi.py CHECKPOINT [PORT]
    curl localhost:8000/readyz
    curl localhost:8000/predict -H 'content-type: application/json' -d '[1, 2, 3]'
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import anyio
import uvicorn
from fastapi import FastAPI, HTTPException, Request

import coldstart
from coldstart.asgi import HealthRoutes
from coldstart.healthchecks import HealthChecks

if TYPE_CHECKING:
    from torch import nn

GRACE = float(os.environ.get("GRACE_SECONDS", "2"))
"""Longer than balancers take to see that /readyz is 503; 0 where a preStop hook has waited already."""
DEVICE = os.environ.get("DEVICE", "cpu")
REQUESTS = 30
"""Seconds that requests in flight may take when the worker ends."""
FEATURES = 1024


def make() -> nn.Module:
    """Your model. Made in a worker thread: torch, imported here, keeps no health check waiting."""
    from torch import nn

    return nn.Sequential(*(nn.Linear(FEATURES, FEATURES) for _ in range(8)))


class Server(uvicorn.Server):
    """uvicorn closes its listener at SIGTERM, waits for requests, and only then ends the lifespan.

    A source that is withdrawn there has been advertised for all that time, and a balancer that goes by /readyz has
    never seen it say no. So the worker drains before uvicorn begins to shut down.
    """

    def __init__(self, config: uvicorn.Config, checks: HealthChecks) -> None:
        super().__init__(config)
        self.failure: coldstart.ColdstartError | None = None
        self._checks = checks

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._checks.drain(GRACE if self.failure is None else 0.0)
        await super().shutdown(sockets)

    async def end_if_failed(self, replica: coldstart.Replica) -> None:
        """A cold start that found no way ends the process, for whoever started it to try again."""
        try:
            await replica.ready()
        except coldstart.ColdstartError as error:
            if not replica.draining:
                self.failure, self.should_exit = error, True


def serve(checkpoint: str, port: int) -> None:
    checks = HealthChecks(drain="loopback")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # uvicorn listens only after the yield: with wait=False the weights arrive meanwhile.
        async with (
            coldstart.join(checkpoint, skeleton=make, device=DEVICE, wait=False) as replica,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(server.end_if_failed, replica)
            app.state.replica = replica
            with checks.following(replica):
                yield
            tasks.cancel_scope.cancel()

    app = FastAPI(lifespan=lifespan)

    @app.post("/predict")
    def predict(request: Request, inputs: list[float]) -> list[float]:
        replica = cast(coldstart.Replica, request.app.state.replica)
        if not replica.verified:
            raise HTTPException(503, "the weights are not here yet")
        import torch

        with torch.inference_mode():
            row = torch.tensor([inputs + [0.0] * (FEATURES - len(inputs))], device=DEVICE)
            return cast("list[float]", replica.module(row)[0, :4].tolist())

    app.add_middleware(HealthRoutes, checks=checks)
    config = uvicorn.Config(app, host="0.0.0.0", port=port, log_level="warning", timeout_graceful_shutdown=REQUESTS)
    server = Server(config, checks)
    server.run()
    if server.failure is not None:
        sys.exit(f"coldstart: {server.failure}")


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8000)
