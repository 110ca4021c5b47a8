"""What lending costs the source: the time of a matrix product, alone and while a joiner pulls.

Decides which products count as disturbed, those that ran wholly while bytes were on their way, and which as alone,
those of the rests between: a device slows down as it gets warm, so the source multiplies all the time, and pulls and
rests take turns. Both sides read one clock (the monotonic clock of the host), so that the source can tell afterwards.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final

import anyio
import anyio.to_thread
import msgspec
import torch

from benchmarks.gpu.lent import Borrower, lend, opened
from benchmarks.gpu.pulls import HOST_KINDS
from benchmarks.gpu.side import Task, needs_cuda
from benchmarks.gpu.words import Figure

SIDE: Final = 8192
TOY_SIDE: Final = 256
WARM_SECONDS: Final = 2
"""The source multiplies for so long before the first pull: its device has to become as warm as it will be."""
PULL_SECONDS: Final = 6
"""Pulls and rests take turns for so long, at least three times."""
TURN_SECONDS: Final = 0.2
"""Pulls follow each other for so long, then there is a rest that is as long."""

Span = tuple[float, float]
"""Monotonic seconds of a beginning and an end."""
Sample = tuple[Span, float]
"""When a product ran, and the milliseconds that it took on its device."""


def lending(task: Task) -> None:
    """Both sides of the case."""
    if task.order.options["transport"] not in HOST_KINDS:
        needs_cuda(task, two=True)
    anyio.run(_source if task.lends else _joiner, task)


async def _joiner(task: Task) -> None:
    async with opened(task) as mine:
        borrower = Borrower(task, *mine)
        await borrower.pull(verified=False)
        task.peer.say(b"end")
        await anyio.to_thread.run_sync(task.peer.hear)  # the source is warm
        pulls, turns = list[Span](), 0
        until = time.monotonic() + task.scaled(PULL_SECONDS, 0)
        while turns < 3 or time.monotonic() < until:
            turns, rest = turns + 1, time.monotonic() + TURN_SECONDS
            while time.monotonic() < rest:
                pulls.append(await borrower.pull(verified=False, checked=False))
            await anyio.sleep(TURN_SECONDS)
        task.peer.say(b"end")
        task.peer.say(msgspec.json.encode(pulls))
        await anyio.to_thread.run_sync(task.peer.hear)


async def _source(task: Task) -> None:
    multiply, products = _product(task), list[Sample]()
    async with opened(task) as mine:
        await lend(task, *mine)
        warm = time.monotonic() + task.scaled(WARM_SECONDS, 0)
        await anyio.to_thread.run_sync(_repeat, multiply, list[Sample](), lambda: time.monotonic() > warm)
        over = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, _repeat, multiply, products, over.is_set)
            task.peer.say(b"")
            await lend(task, *mine)
            over.set()
        pulls = msgspec.json.decode(await anyio.to_thread.run_sync(task.peer.hear), type=list[Span])
        _tell(task, products, pulls)
        task.peer.say(b"")


_event: Callable[..., torch.cuda.Event] = torch.cuda.Event


def _product(task: Task) -> Callable[[], Sample]:
    """A function that multiplies, and says when, and how long one product took its device."""
    side = task.scaled(SIDE, TOY_SIDE)
    dtype = torch.float32 if task.device == "cpu" else torch.bfloat16
    one, two = (torch.randn(side, side, device=task.device).to(dtype) for _ in range(2))
    out = torch.empty_like(one)

    def on_host() -> Sample:
        began = time.monotonic()
        torch.mm(one, two, out=out)
        ended = time.monotonic()
        return (began, ended), (ended - began) * 1000

    def on_device() -> Sample:
        began = time.monotonic()
        with torch.cuda.device(task.device):
            start, stop = _event(enable_timing=True), _event(enable_timing=True)
            torch.mm(one, two, out=out)  # the next one is queued meanwhile: the host has no part in its time
            start.record()
            torch.mm(one, two, out=out)
            stop.record()
        stop.synchronize()
        return (began, time.monotonic()), start.elapsed_time(stop)

    return on_host if task.device == "cpu" else on_device


def _repeat(multiply: Callable[[], Sample], into: list[Sample], enough: Callable[[], bool]) -> None:
    while not enough():
        into.append(multiply())


def _tell(task: Task, products: Sequence[Sample], pulls: Sequence[Span]) -> None:
    name = task.order.case.removeprefix("lending ")
    during = tuple(took for ran, took in products if any(low <= ran[0] and ran[1] <= high for low, high in pulls))
    alone = tuple(took for ran, took in products if not any(low < ran[1] and ran[0] < high for low, high in pulls))
    if not during:
        raise RuntimeError("no matrix product ran wholly within a pull")
    rate = task.layout.payload * len(pulls) / sum(high - low for low, high in pulls) / 1e9
    task.tell(Figure("matrix product, alone", "ms", alone))
    task.tell(Figure(f"matrix product while lending by {name}", "ms", during, note=f"lent at {rate:.1f} GB/s"))
    ratio = statistics.median(during) / statistics.median(alone)
    task.tell(Figure(f"{name}: product while lending / alone", "ratio", (ratio,)))
