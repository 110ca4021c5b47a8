"""The digest beside the fastest that its memory can be read: the kernel, single chunks, chunks as they land.

Decides in which forms csfp1 is timed. All forms hash the same arena, and what they find is compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import anyio
import torch

from benchmarks.gpu import models
from benchmarks.gpu.side import Task, needs_room
from benchmarks.gpu.words import Figure
from coldstart import rowsums
from coldstart.arena import Arena
from coldstart.csfp1 import LANES, ROW_BYTES, ROW_WORDS
from coldstart.digest import ChunkDigester
from coldstart.hashing import WORKERS
from coldstart.landing import Landing
from coldstart.layout import Span
from coldstart.plan import Chunks

LIMIT_BYTES: Final = 4 << 30
TOY_BYTES: Final = 8 << 20
INNER: Final = 8
"""Launches timed together where only the device's time counts."""


def digests(task: Task) -> None:
    """One side; the other one has nothing to do."""
    if task.lends:
        return
    needs_room(task, task.layout.nbytes + LIMIT_BYTES)
    _reading(task)
    arena = Arena(task.layout, task.device)
    models.fill(arena, seed=3)
    digester = ChunkDigester()
    digester.prepare(task.device)
    if task.device != "cpu":
        _row_sums(task, arena)
    _calls(task, arena, digester)


def _reading(task: Task) -> None:
    nbytes = task.scaled(LIMIT_BYTES, TOY_BYTES)
    words = torch.zeros(nbytes // 8, dtype=torch.int64, device=task.device)
    _tell(task, "reading once, int64 sum: the limit", nbytes, lambda: words.sum(), INNER)


def _row_sums(task: Task, arena: Arena) -> None:
    """Only what the device does, without the way to the host."""
    device = torch.device(task.device)
    words = _words(arena, Span(0, arena.layout.nbytes // ROW_BYTES * ROW_BYTES))
    if words is None:
        return
    torch.cuda.set_device(device)
    keys = rowsums.keys_on(device)
    sums = torch.zeros((len(words), LANES), dtype=torch.int64, device=device)
    if rowsums.fastest(device) is not rowsums.by_kernel:
        raise RuntimeError("the fused kernel does not run here")
    nbytes, per_chunk = words.numel() * 4, arena.layout.chunk_bytes // ROW_BYTES
    parts = [(at, words[at : at + per_chunk]) for at in range(0, len(words), per_chunk)]

    def each() -> None:
        for at, part in parts:
            rowsums.by_kernel(part, keys, sums, at)

    def whole() -> None:
        rowsums.by_kernel(words, keys, sums, 0)

    _tell(task, "csfp1 row sums, fused kernel, one launch", nbytes, whole, INNER)
    _tell(task, "csfp1 row sums, fused kernel, a launch per chunk", nbytes, each)
    sample = words[: LIMIT_BYTES // ROW_BYTES]
    by_torch = partial(rowsums.by_operators, sample, keys, sums, 0)
    _tell(task, "csfp1 row sums, torch operators", sample.numel() * 4, by_torch)


def _words(arena: Arena, span: Span) -> torch.Tensor | None:
    pieces = arena.resident(span)
    if len(pieces) != 1 or pieces[0][1].numel() != span.length:
        return None
    return pieces[0][1].view(torch.int32).view(-1, ROW_WORDS)


def _calls(task: Task, arena: Arena, digester: ChunkDigester) -> None:
    """Digests in host memory, as their users get them."""
    layout = arena.layout
    spans = [layout.chunk(chunk) for chunk in range(layout.chunks)]

    def one_thread() -> Sequence[bytes]:
        return [digester.digest(arena, span) for span in spans]

    def threads() -> Sequence[bytes]:
        with ThreadPoolExecutor(WORKERS) as pool:
            return list(pool.map(lambda span: digester.digest(arena, span), spans))

    def landing() -> Sequence[bytes]:
        return anyio.run(_land, arena, digester, spans)

    def batches() -> Sequence[bytes]:
        most = max(digester.at_once(arena), 1)
        found: list[bytes] = []
        for at in range(0, len(spans), most):
            found += digester.digests(arena, spans[at : at + most])
        return found

    forms = {
        "a call per chunk, one thread": one_thread,
        f"a call per chunk, {WORKERS} threads": threads,
        f"{max(digester.at_once(arena), 1)} chunks a call, one thread": batches,
        "Landing, all chunks landed at once": landing,
    }
    expected = one_thread()
    for label, form in forms.items():
        if form() != expected:
            raise RuntimeError(f"csfp1 by {label} has another value")
        _tell(task, f"csfp1 digests, {label}", layout.payload, form)


async def _land(arena: Arena, digester: ChunkDigester, spans: Sequence[Span]) -> Sequence[bytes]:
    found: dict[int, bytes] = {}

    async def on_chunk(chunk: int, value: bytes) -> None:
        found[chunk] = value

    landing = Landing(arena, digester, Chunks.first(len(spans)), lambda nbytes: None, on_chunk)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(landing.verify)
        for span in spans:
            landing.landed(span)
        await landing.settle()
    return [found[chunk] for chunk in range(len(spans))]


def _tell(task: Task, label: str, nbytes: int, work: Callable[[], object], inner: int = 1) -> None:
    """Time ``work``, done ``inner`` times in a row, from an idle device to an idle device."""
    rates: list[float] = []
    for _ in range(task.order.rounds + 1):
        task.settle()
        began = time.perf_counter()
        for _ in range(inner):
            work()
        task.settle()
        rates.append(inner * nbytes / (time.perf_counter() - began) / 1e9)
    task.tell(Figure(label, "GB/s", tuple(rates[1:]), rates[0]))
