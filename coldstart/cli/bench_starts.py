"""Whole cold starts for ``coldstart bench``, as they run in its child processes.

Decides what of a cold start is reported, and refuses one that took another path than was to be
measured. Uses the public API only. What the figures mean is decided in ``bench_joins.py``.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from coldstart import config
from coldstart.cli.bench_words import Hold, Outcome, Start
from coldstart.config import Settings
from coldstart.errors import ColdstartError
from coldstart.phases.states import Phase
from coldstart.replica import Replica, join
from coldstart.report import Report

SKELETON = "tensors"


def settings_at(place: str) -> Settings:
    """The operator's settings, but with the store at ``place`` (none without one), and tcp on this machine.

    No link is probed or remembered.
    """
    return config.load(
        {
            "redis": "" if place else "none",
            "directory": str(Path(place) / "store") if place else "",
            "transports": "tcp",
            "host": "127.0.0.1",
            "cache": "none",
        }
    )


@asynccontextmanager
async def holding(request: Hold) -> AsyncIterator[None]:
    """A source, while the block lasts; it has read storage when the block is entered."""
    settings = settings_at(request.place)
    async with join(request.checkpoint, skeleton=SKELETON, worker="bench-source", settings=settings) as replica:
        _check(replica.report, peer=False)
        yield


async def start(request: Start) -> tuple[Outcome, ...]:
    """Cold-start and leave again and again, always under one name: never from what it lent itself."""
    settings = settings_at(request.place)
    until = time.monotonic() + request.seconds
    outcomes: list[Outcome] = []
    while len(outcomes) < request.count and (not outcomes or time.monotonic() < until):
        async with join(
            request.checkpoint,
            skeleton=SKELETON,
            worker=f"bench-joiner-{os.getpid()}",
            settings=settings,
            wait=not request.watched,
        ) as replica:
            first_byte = await _first_byte(replica) if request.watched else 0.0
            report = await replica.ready()
        _check(report, peer=bool(request.place))
        outcomes.append(Outcome(report.seconds, report.phases, first_byte))
    return tuple(outcomes)


async def _first_byte(replica: Replica) -> float:
    """Seconds from the step that entered DISCOVER to the step that saw the first range land."""
    entered = 0.0
    async for step in replica.progress():
        if step.phase is Phase.DISCOVER and not entered:
            entered = step.seconds
        elif step.bytes_landed:
            return step.seconds - entered if entered else 0.0
    return 0.0


def _check(report: Report, *, peer: bool) -> None:
    expected = "peer" if peer else "storage"
    if report.path != expected or len(report.attempts) != 1:
        raise ColdstartError(
            f"a cold start came from {report.path}, not undisturbed from {expected}: {'; '.join(report.detours)}",
            advice="run again when this machine is less busy",
        )
