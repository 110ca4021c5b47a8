"""Whole cold starts through ``coldstart.join``: from the finished skeleton to SERVE.

Decides what of a cold start is counted, and refuses one that took another path than was to be measured.
The first of a process pays for everything that is slow once; it is shown beside the later ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread

from benchmarks.gpu.pulls import HOST_KINDS
from benchmarks.gpu.side import Task, Unable, needs_cuda
from benchmarks.gpu.stored import cached_share, checkpoint, forget
from benchmarks.gpu.words import Figure
from coldstart import config
from coldstart.errors import BusError, PluginUnavailable, UnknownPlugin
from coldstart.replica import Replica, join
from coldstart.report import Report

HOST = "127.0.0.1"


def from_peer(task: Task) -> None:
    """Both sides: a source that has read storage, and a joiner that starts again and again."""
    if task.order.options["transport"] not in HOST_KINDS:
        needs_cuda(task, two=True)
    anyio.run(_hold if task.lends else _start_from_peer, task)


def from_storage(task: Task) -> None:
    """One side: cold starts without a peer, page cache cold and hot."""
    if not task.lends:
        anyio.run(_start_from_storage, task)


async def _hold(task: Task) -> None:
    async with _joined(task, "source"):
        task.peer.say(b"")
        await anyio.to_thread.run_sync(task.peer.hear)


async def _start_from_peer(task: Task) -> None:
    name = task.order.options["transport"]
    await anyio.to_thread.run_sync(task.peer.hear)
    reports: list[Report] = []
    for _ in range(task.order.rounds + 1):
        async with _joined(task, "joiner") as replica:
            reports.append(_checked(replica.report, "peer", name))
    _tell(task, f"{name}: cold start from a peer", "transfer", reports)
    task.peer.say(b"")


async def _start_from_storage(task: Task) -> None:
    files = sorted(checkpoint(task).glob("*.safetensors"))
    for heat in ("cold", "hot"):
        reports: list[Report] = []
        for _ in range(min(task.order.rounds, 2) + 1):
            if heat == "cold":
                forget(files)
            share = cached_share(files)
            async with _joined(task, "alone") as replica:
                reports.append(_checked(replica.report, "storage", ""))
        note = f"{share * 100:.0f} % was in the page cache"
        _tell(task, f"cold start from storage, page cache {heat}", "fallback", reports, note)


@asynccontextmanager
async def _joined(task: Task, worker: str) -> AsyncIterator[Replica]:
    alone = worker == "alone"
    settings = config.load(
        {
            "redis": "none" if alone else None,
            "directory": str(task.directory / f"store-{task.order.options.get('transport', '')}"),
            "transports": "tcp" if alone else task.order.options["transport"],
            "host": HOST,
            "cache": "none",  # or the first start of all would wait for a probe
        }
    )
    try:
        async with join(
            checkpoint(task), skeleton="tensors", device=task.device, worker=worker, settings=settings
        ) as replica:
            yield replica
    except (UnknownPlugin, PluginUnavailable, BusError) as error:
        raise Unable(str(error)) from error


def _checked(report: Report, path: str, transport: str) -> Report:
    if report.path != path or report.transport not in ("", transport, "storage") or len(report.attempts) != 1:
        detours = "; ".join(report.detours)
        raise RuntimeError(f"a cold start came from {report.path} by {report.transport}, not {path}: {detours}")
    return report


def _tell(task: Task, label: str, phase: str, reports: list[Report], note: str = "") -> None:
    serve = [report.seconds - report.phases["build"] for report in reports]
    first, *others = reports
    parts = ", ".join(f"{name} {seconds * 1000:.1f} ms" for name, seconds in others[0].phases.items())
    words = [others[0].route and f"route {others[0].route}", note, f"phases: {parts}"]
    said = "; ".join(word for word in words if word)
    task.tell(Figure(f"{label}, skeleton ready to SERVE", "s", tuple(serve[1:]), serve[0], said))
    rates = [first.bytes_total / seconds / 1e9 for seconds in serve]
    task.tell(Figure(f"{label}, the same", "GB/s", tuple(rates[1:]), rates[0]))
    rates = [report.bytes_total / report.phases[phase] / 1e9 for report in reports]
    task.tell(Figure(f"{label}, its {phase.upper()} phase", "GB/s", tuple(rates[1:]), rates[0]))
