"""Replaces workers one by one, as a Deployment does with ``maxUnavailable: 0`` and ``minReadySeconds``.

First comes the new one, then, as soon as requests are sent there, too, the old one goes.

Decides the order of a rollout and what is measured of it. What a worker is, is in ``worker.py``; who
sends requests to it, in ``balancer.py``; from where they come, in ``load.py``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, closing, nullcontext
from functools import partial
from pathlib import Path

import anyio
import msgspec
import torch
from anyio.abc import TaskGroup
from rig.store import Store
from safetensors.torch import load_file, save_file
from torch import nn

from tests.embed.asking import Kept, numbers_of_line
from tests.embed.balancer import CHECK_SECONDS, CHECK_TIMEOUT, Balancer, Place, balancer
from tests.embed.load import Ask, Load, load
from tests.embed.worker import Worker, free_places, free_port

GRACE_SECONDS = CHECK_SECONDS + CHECK_TIMEOUT + 0.5
"""How long a worker that ends still takes requests: by then the balancer knows, however busy the machine is."""
RATE = 20.0
"""Requests a second in all."""
LAYERS, FEATURES = 8, 1024
"""Those of the examples: 34 MB."""
INPUTS = [1.0, 2.0, 3.0]


class Kind(msgspec.Struct, frozen=True):
    """One way to serve: the example, and whether it speaks HTTP."""

    example: str
    http: bool

    def client(self, port: int) -> AbstractContextManager[Ask]:
        """Who asks at ``port``: clients of HTTP keep connections, those of lines have a new one for each request."""
        return closing(Kept(port, INPUTS)) if self.http else nullcontext(partial(numbers_of_line, port, INPUTS))


KINDS = {"fastapi": Kind("04_fastapi.py", True), "asyncio": Kind("05_plain_asyncio.py", False)}


class Replaced(msgspec.Struct, frozen=True):
    """One replacement: seconds from start to ready, path, and seconds from SIGTERM to the end of the old one."""

    worker: str
    ready: float
    path: str
    draining: float = 0.0


class Outcome(msgspec.Struct, frozen=True):
    """What a rollout came to; latencies in seconds."""

    example: str
    requests: int
    failed: int
    p50: float
    p99: float
    replaced: tuple[Replaced, ...]


class Fleet:
    """The workers of one rollout, the store that they coordinate through, and the balancer before them."""

    def __init__(
        self, kind: Kind, place: Path, checkpoint: Path, store: Store, places: Sequence[Place], front: Balancer
    ) -> None:
        self.kind, self.store, self.places, self._front = kind, store, places, front
        self.workers: list[Worker] = []
        self.replaced: list[Replaced] = []
        self._place, self._checkpoint = place, checkpoint
        self._started = 0

    def start(self) -> Worker:
        """A new worker, at the next place."""
        number, self._started = self._started, self._started + 1
        log = self._place / f"w{number}.log"
        environment = {"COLDSTART_REDIS": self.store.url, "GRACE_SECONDS": str(GRACE_SECONDS)}
        worker = Worker(self.kind.example, self._checkpoint, self.places[number], log, environment)
        self.workers.append(worker)
        return worker

    async def replace_all(self) -> None:
        """One by one, the last one without a store."""
        async with anyio.create_task_group() as ending:
            for left in reversed(range(len(self.workers))):
                if left == 0:
                    self.store.kill()
                    assert await self.all_serve(), "somebody does not serve without the store"
                await self.replace(ending)
        assert await self.all_serve(), "somebody does not serve without the store"

    async def replace(self, ending: TaskGroup) -> None:
        """Start one; when the balancer has found it, tell the oldest one to end, which ``ending`` waits for."""
        new = self.start()
        health = await new.ready()
        number, ready = self._started - 1, anyio.current_time() - new.began
        await self._front.found(number)
        old = self.workers.pop(0)
        old.terminate()
        ending.start_soon(self._see_out, old, Replaced(f"w{number}", ready, health.path))

    async def _see_out(self, old: Worker, replaced: Replaced) -> None:
        began = anyio.current_time()
        code = await old.ended()
        assert code in (0, -15), f"ended with {code}: {old.log}"
        self.replaced.append(msgspec.structs.replace(replaced, draining=anyio.current_time() - began))

    async def all_serve(self) -> bool:
        """Whether each is alive and ready."""
        told = [(await worker.alive(), await worker.health()) for worker in self.workers]
        return all(alive and health is not None and health[0] == 200 for alive, health in told)

    def outcome(self, load: Load) -> Outcome:
        return Outcome(
            self.kind.example,
            load.requests,
            len(load.failures),
            load.percentile(0.5),
            load.percentile(0.99),
            tuple(sorted(self.replaced, key=lambda each: each.worker)),
        )


@asynccontextmanager
async def fleet(kind: Kind, place: Path, count: int) -> AsyncIterator[tuple[Fleet, Balancer]]:
    """``count`` workers that serve, and whom the balancer has found."""
    async with AsyncExitStack() as resources:
        store = Store(place / "store")
        resources.callback(store.kill)
        places = free_places(2 * count, apart=not kind.http)
        front = await resources.enter_async_context(balancer(place, free_port(), places))
        made = Fleet(kind, place, write_checkpoint(place / "model"), store, places, front)
        resources.callback(lambda: [worker.kill() for worker in made.workers])
        for worker in [made.start() for _ in range(count)]:
            await worker.ready()
        await front.settled(count)
        yield made, front


async def roll(kind: Kind, place: Path, count: int) -> tuple[Outcome, list[str]]:
    """Replace all ``count`` workers under load, the last one without a store; returns what failed, too."""
    async with fleet(kind, place, count) as (workers, front):
        with kind.client(front.port) as client:
            async with load(client, expected(place / "model"), RATE) as made:
                await workers.replace_all()
    return workers.outcome(made), made.failures


def write_checkpoint(directory: Path) -> Path:
    """Weights of the module that the examples serve."""
    directory.mkdir()
    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for layer in range(LAYERS):
        tensors[f"{layer}.weight"] = torch.randn(FEATURES, FEATURES, generator=generator) / FEATURES**0.5
        tensors[f"{layer}.bias"] = torch.randn(FEATURES, generator=generator)
    save_file(tensors, directory / "model.safetensors")
    return directory


def expected(directory: Path) -> list[float]:
    """What the examples make of INPUTS with the weights of a checkpoint."""
    module = nn.Sequential(*(nn.Linear(FEATURES, FEATURES) for _ in range(LAYERS)))
    module.load_state_dict(load_file(directory / "model.safetensors"))
    with torch.inference_mode():
        row = torch.tensor([INPUTS + [0.0] * (FEATURES - len(INPUTS))])
        return [float(value) for value in module(row)[0, :4]]


def table(outcomes: Iterable[Outcome]) -> str:
    """Markdown: one row per rollout, then one per replacement."""
    lines = ["| example | requests | failed | p50 | p99 |", "|---|---|---|---|---|"]
    rows = ["", "| example | new worker | ready after | path | the old one ended after |", "|---|---|---|---|---|"]
    for each in outcomes:
        lines.append(
            f"| {each.example} | {each.requests} | {each.failed} | {each.p50 * 1e3:.0f} ms | {each.p99 * 1e3:.0f} ms |"
        )
        rows += [
            f"| {each.example} | {new.worker} | {new.ready:.1f} s | {new.path} | {new.draining:.1f} s |"
            for new in each.replaced
        ]
    return "\n".join((*lines, *rows)) + "\n"
