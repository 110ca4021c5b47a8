"""A worker of plain asyncio: lines of JSON over TCP, health checks on a port of their own.

    python examples/05_plain_asyncio.py CHECKPOINT [PORT] [HEALTH_PORT]
    curl localhost:9001/readyz
    echo '[1, 2, 3]' | nc localhost 9000
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio import StreamReader, StreamWriter
from typing import TYPE_CHECKING, cast

import coldstart
from coldstart.health_port import listening
from coldstart.healthchecks import HealthChecks

if TYPE_CHECKING:
    from torch import nn

GRACE = float(os.environ.get("GRACE_SECONDS", "2"))
"""Longer than balancers take to see that /readyz is 503; 0 where a preStop hook has waited already."""
REQUESTS = 30
"""Seconds that requests in flight may take when the worker ends."""
FEATURES = 1024


def make() -> nn.Module:
    """Your model. Made in a worker thread: torch, imported here, keeps no health check waiting."""
    from torch import nn

    return nn.Sequential(*(nn.Linear(FEATURES, FEATURES) for _ in range(8)))


def predict(module: nn.Module, inputs: list[float]) -> list[float]:
    import torch

    with torch.inference_mode():
        row = torch.tensor([inputs + [0.0] * (FEATURES - len(inputs))])
        return cast("list[float]", module(row)[0, :4].tolist())


class Worker:
    """Answers each line with a line. :meth:`end` lets requests in flight end, and nobody wait for the next one."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._ending = False
        self._idle: set[StreamWriter] = set()
        self._connections: set[asyncio.Task[None]] = set()

    async def __call__(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            while not self._ending:
                self._idle.add(writer)
                line = await reader.readline()
                self._idle.discard(writer)
                if not line:
                    break
                answer = await asyncio.to_thread(predict, self._module, json.loads(line))
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        finally:
            writer.close()

    async def end(self) -> None:
        self._ending = True
        for writer in self._idle:
            writer.close()
        if self._connections:
            await asyncio.wait(self._connections, timeout=REQUESTS)


async def main(checkpoint: str, port: int, health_port: int) -> None:
    stop, checks = asyncio.Event(), HealthChecks(drain="loopback")
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with (
        listening(checks, health_port),
        coldstart.join(checkpoint, skeleton=make, wait=False) as replica,
    ):
        with checks.following(replica):
            if not await arrived(replica, stop):
                return
            worker = Worker(replica.module)
            async with await asyncio.start_server(worker, "0.0.0.0", port) as server:
                await stop.wait()
                await checks.drain(GRACE)  # first: nobody is sent here any more, for weights nor with requests
                server.close()
                await worker.end()


async def arrived(replica: coldstart.Replica, stop: asyncio.Event) -> bool:
    """Whether the weights came before the signal to end."""
    ready, stopped = asyncio.create_task(replica.ready()), asyncio.create_task(stop.wait())
    done, others = await asyncio.wait({ready, stopped}, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    try:
        return ready in done and await ready is not None
    except coldstart.ColdstartError:
        if replica.draining:  # a preStop hook was quicker than the weights
            return False
        raise


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[2:]]
    ports = (given + [9000, 9001][len(given) :])[:2]
    try:
        asyncio.run(main(sys.argv[1], *ports))
    except coldstart.ColdstartError as error:
        sys.exit(f"coldstart: {error}")
