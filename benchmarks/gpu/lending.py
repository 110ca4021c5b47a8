"""What lending costs the source: the time of a matrix product, alone and while a joiner pulls.

Decides which products count as disturbed: those that ran wholly while bytes were on their way, and that they are
compared with those of before and after, since a device slows down as it gets warm. Both sides read one clock (the
monotonic clock of the host), so that the source can tell afterwards.
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
ALONE_SECONDS: Final = 1
"""Before lending, and as long after it."""
PULL_SECONDS: Final = 3
"""Pulls follow each other for so long, and at least three of them."""

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
        await anyio.to_thread.run_sync(task.peer.hear)  # the source has measured what it does alone
        pulls: list[Span] = []
        until = time.monotonic() + task.scaled(PULL_SECONDS, 0)
        while len(pulls) < 3 or time.monotonic() < until:
            pulls.append(await borrower.pull(verified=False, checked=False))
        task.peer.say(b"end")
        task.peer.say(msgspec.json.encode(pulls))
        await anyio.to_thread.run_sync(task.peer.hear)


async def _source(task: Task) -> None:
    multiply, alone, during = _product(task), list[Sample](), list[Sample]()
    async with opened(task) as mine:
        await lend(task, *mine)
        await _undisturbed(task, multiply, alone)
        del alone[: len(alone) // 4]  # the clock of the device has to rise first
        task.peer.say(b"")
        over = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, _repeat, multiply, during, over.is_set)
            await lend(task, *mine)
            over.set()
        pulls = msgspec.json.decode(await anyio.to_thread.run_sync(task.peer.hear), type=list[Span])
        await _undisturbed(task, multiply, alone)
        _tell(task, alone, during, pulls)
        task.peer.say(b"")


async def _undisturbed(task: Task, multiply: Callable[[], Sample], into: list[Sample]) -> None:
    until, least = time.monotonic() + task.scaled(ALONE_SECONDS, 0), len(into) + 20
    await anyio.to_thread.run_sync(_repeat, multiply, into, lambda: len(into) > least and time.monotonic() > until)


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


def _tell(task: Task, alone: Sequence[Sample], during: Sequence[Sample], pulls: Sequence[Span]) -> None:
    name = task.order.case.removeprefix("lending ")
    disturbed = [took for (began, ended), took in during if any(low <= began and ended <= high for low, high in pulls)]
    lent = sum(high - low for low, high in pulls)
    rate = task.layout.payload * len(pulls) / lent / 1e9
    quiet = tuple(took for _, took in alone)
    task.tell(Figure("matrix product, alone", "ms", quiet))
    if not disturbed:
        raise RuntimeError("no matrix product ran wholly within a pull")
    busy = tuple(disturbed)
    task.tell(Figure(f"matrix product while lending by {name}", "ms", busy, note=f"lent at {rate:.1f} GB/s"))
    ratio = statistics.median(busy) / statistics.median(quiet)
    task.tell(Figure(f"{name}: product while lending / alone", "ratio", (ratio,)))
