"""The digest beside the fastest that its memory can be read: the kernel, single chunks, chunks as they land.

Decides in which forms csfp1 is timed. All forms hash the same arena, and what they find is compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import anyio
import torch

from benchmarks.gpu import models
from benchmarks.gpu.side import Task, needs_room
from benchmarks.gpu.words import Figure
from coldstart import digest
from coldstart.arena import Arena
from coldstart.landing import WORKERS, Landing
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
    digester = digest.ChunkDigester()
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
    keys = torch.from_numpy(digest.KEYS.copy()).to(task.device)
    layout, span = arena.layout, Span(0, arena.layout.nbytes // digest.ROW_BYTES * digest.ROW_BYTES)
    words = _words(arena, span)
    if words is None:
        return
    per_chunk = layout.chunk_bytes // digest.ROW_BYTES
    parts = [words[at : at + per_chunk] for at in range(0, len(words), per_chunk)]
    try:
        digest.by_kernel(words[:1], keys)
    except Exception as error:
        raise RuntimeError(f"the fused kernel does not run here: {error!r}") from error
    _tell(task, "csfp1 row sums, fused kernel, one launch", span.length, lambda: digest.by_kernel(words, keys), INNER)

    def each() -> None:
        for part in parts:
            digest.by_kernel(part, keys)

    _tell(task, "csfp1 row sums, fused kernel, a launch per chunk", span.length, each)
    sample = words[: LIMIT_BYTES // digest.ROW_BYTES]
    _tell(
        task, "csfp1 row sums, torch operators", sample.numel() * 4, lambda: digest.by_operators(sample, keys)
    )


def _words(arena: Arena, span: Span) -> torch.Tensor | None:
    pieces = arena.resident(span)
    if len(pieces) != 1 or pieces[0][1].numel() != span.length:
        return None
    return pieces[0][1].view(torch.int32).view(-1, digest.ROW_WORDS)


def _calls(task: Task, arena: Arena, digester: digest.ChunkDigester) -> None:
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

    found = [one_thread(), threads(), landing()]
    if any(other != found[0] for other in found):
        raise RuntimeError("the forms of the digest do not agree")
    _tell(task, "csfp1 digests, a call per chunk, one thread", layout.payload, one_thread)
    _tell(task, f"csfp1 digests, a call per chunk, {WORKERS} threads", layout.payload, threads)
    _tell(task, "csfp1 digests, Landing, all chunks landed at once", layout.payload, landing)


async def _land(arena: Arena, digester: digest.ChunkDigester, spans: Sequence[Span]) -> Sequence[bytes]:
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
