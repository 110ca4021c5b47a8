"""Arena to arena by a real transport, without and with verification, in turn.

Decides what verification is said to cost: the pulls of both kinds alternate in one pair of processes, and
the medians of their times are compared.
"""

from __future__ import annotations

import statistics

import anyio

from benchmarks.gpu.lent import Borrower, lend, opened
from benchmarks.gpu.side import Task, needs_cuda
from benchmarks.gpu.words import Figure

HOST_KINDS = ("tcp", "gloo")
"""Transports that need neither CUDA nor two GPUs."""


def pull(task: Task) -> None:
    """Both sides of the case."""
    if task.order.options["transport"] not in HOST_KINDS:
        needs_cuda(task, two=task.order.options["transport"] == "nccl")
    anyio.run(_source if task.lends else _joiner, task)


async def _source(task: Task) -> None:
    async with opened(task) as mine:
        await lend(task, *mine)


async def _joiner(task: Task) -> None:
    name = task.order.options["transport"]
    async with opened(task) as (transport, arena, digester):
        borrower = Borrower(task, transport, arena, digester)
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(task.order.rounds + 1):
            for verified in seconds:
                began, ended = await borrower.pull(verified=verified)
                seconds[verified].append(ended - began)
        for verified, label in ((False, f"{name}: pull"), (True, f"{name}: pull, verified as it lands")):
            first, *others = [arena.layout.payload / each / 1e9 for each in seconds[verified]]
            task.tell(Figure(label, "GB/s", tuple(others), first))
        if borrower.connects:
            first, *others = [each * 1000 for each in borrower.connects]
            task.tell(Figure(f"{name}: connecting before the first byte", "ms", tuple(others), first))
        plain, proven = (statistics.median(found[1:]) for found in seconds.values())
        task.tell(Figure(f"{name}: time that verification adds", "%", ((proven / plain - 1) * 100,), note="bar: 5 %"))
        task.peer.say(b"end")
