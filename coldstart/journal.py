"""The journal of a cold start on the bus: one entry per change of state, for operators.

Decides what of a step is worth keeping for others to read. It is written behind the cold start,
never in its way: when the bus is down or slow, entries are dropped and counted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import anyio
import msgspec

from coldstart.errors import BusError
from coldstart.machine import phase_of
from coldstart.phases.states import Phase, State
from coldstart.ports import Bus
from coldstart.refusals import Refusals
from coldstart.runner import Entry

LATER_SECONDS = 0.05
"""The cold start has the event loop for itself for so long when it has just ended."""

GATHER_SECONDS = 2.0
"""Entries of so long are written together; but at once when the cold start has ended."""

KEPT = 256
"""Entries that wait to be written, at most."""

_ENDS = (Phase.SERVE, Phase.FAILED, Phase.GONE)


class Line(msgspec.Struct, frozen=True):
    """One entry as it is written, in JSON. ``at`` is in seconds of the epoch on the worker's clock."""

    at: float
    worker: str
    number: int
    event: str
    left: str
    entered: str
    phase: str
    attempt: int
    verified: int
    chunks: int
    effects: tuple[str, ...]
    reason: str = ""
    refused: Mapping[str, int] = {}
    """How much was not believed so far, by reason, where the fleet has keys."""


class Journal:
    """Observes a joiner and writes its changes of state to ``bus``."""

    def __init__(self, bus: Bus, shard: str, worker: str, refusals: Refusals | None = None) -> None:
        self._bus, self._shard, self._worker = bus, shard, worker
        self._refusals = refusals or Refusals()
        self._lines: list[Line] = []
        self._begun, self._ended = anyio.Event(), anyio.Event()
        self.dropped = 0

    def __call__(self, entry: Entry[State]) -> None:
        if type(entry.before) is type(entry.after) and entry.before.journey.attempt == entry.after.journey.attempt:
            return
        journey = entry.after.journey
        new_detour = len(journey.detours) > len(entry.before.journey.detours)
        line = Line(
            at=time.time(),
            worker=self._worker,
            number=entry.number,
            event=type(entry.event).__name__,
            left=type(entry.before).__name__,
            entered=type(entry.after).__name__,
            phase=phase_of(entry.after).value,
            attempt=journey.attempt,
            verified=len(journey.verified),
            chunks=journey.total,
            effects=tuple(type(effect).__name__ for effect in entry.effects),
            reason=journey.detours[-1] if new_detour else "",
            refused=self._refusals.counts(),
        )
        if len(self._lines) == KEPT:
            self.dropped += 1
            return
        self._lines.append(line)
        self._begun.set()
        if phase_of(entry.after) in _ENDS:
            self._ended.set()

    async def run(self) -> None:
        """Write until cancelled, what comes in a moment together: each call is a round trip, for the store too."""
        while True:
            await self._begun.wait()
            with anyio.move_on_after(GATHER_SECONDS):
                await self._ended.wait()
            await anyio.sleep(LATER_SECONDS)
            lines, self._lines = self._lines, []
            self._begun, self._ended = anyio.Event(), anyio.Event()
            try:
                await self._bus.record(self._shard, [msgspec.json.encode(line) for line in lines])
            except BusError:
                self.dropped += len(lines)
