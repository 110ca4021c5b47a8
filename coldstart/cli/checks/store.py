"""Checks of the store: can it be reached, how quick is it, will it forget, what time does it think it is.

Decides what a store must be like for cold starts to be quick. Everything goes through the Bus port,
except for what the server says about itself (``RedisBus.describe``). The store stays open until the
stack given to :class:`StoreChecks` ends. It must not know transports.
"""

from __future__ import annotations

import os
import secrets
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

from coldstart import wiring
from coldstart.bus.description import Description
from coldstart.cli.checks.check import Check, fail, in_daemon_thread, ok, warn
from coldstart.cli.output import seconds, size
from coldstart.config import Settings
from coldstart.errors import BusError, PluginUnavailable
from coldstart.ports import Bus, Claim

ROUNDS = 50
SAMPLING_SECONDS = 3.0
SLOW_MEDIAN = 0.010
SLOW_WORST = 0.100
SKEW = 1.0
FULL = 0.8

_SHARD = "doctor"
"""A shard of its own, of which one small key remains for a week."""


class StoreChecks:
    """The checks in their order; ``bus`` is there once :meth:`reach` has been successful."""

    def __init__(self, settings: Settings, stack: AsyncExitStack) -> None:
        self.bus: Bus | None = None
        self._settings = settings
        self._stack = stack
        self._told: Description | None = None
        self._skew = self._unsure = 0.0

    @property
    def embedded(self) -> bool:
        """Whether the store is the one this machine brings itself."""
        return not self._settings.redis

    async def directory(self) -> Sequence[Check]:
        """Whether the embedded store's directory is ours alone."""
        directory = self._settings.embedded_directory
        url = await in_daemon_thread(self._running)
        there = await in_daemon_thread(lambda: os.path.exists(directory))  # Path.exists raises for what may not be seen
        if not there:
            return [ok("store directory", f"{directory} is not there yet and will be made")]
        return [ok("store directory", f"{directory} is ours alone; {'a' if url else 'no'} server runs in it")]

    async def reach(self) -> Sequence[Check]:
        """Open the store as a worker would, and ask what it is."""
        if self._settings.redis == "none":
            advice = "give --redis URL, or unset COLDSTART_REDIS for the store of this machine"
            return [warn("store", "coordination is switched off: every start reads storage", advice)]
        try:
            bus = await self._stack.enter_async_context(wiring.open_bus(self._settings, probe=True))
        except (BusError, PluginUnavailable) as error:
            advice = error.advice or "look into that"
            return [fail("store", error.what, f"{advice}; until then every start reads storage")]
        self.bus = bus
        return [await self._introduce(bus)]

    async def round_trips(self) -> Sequence[Check]:
        """The time of one claim, which is what DISCOVER costs."""
        assert self.bus is not None
        times: list[float] = []
        until = time.perf_counter() + SAMPLING_SECONDS
        await self._claim(self.bus)  # connects, and teaches the server the script
        while len(times) < ROUNDS and (not times or time.perf_counter() < until):
            times.append(await self._claim(self.bus))
        median, worst = statistics.median(times), sorted(times)[-(-len(times) * 99 // 100) - 1]
        finding = f"claim: median {_fine(median)}, p99 {_fine(worst)} of {len(times)}"
        if median > SLOW_MEDIAN:
            return [warn("round trip", finding, "move the store closer: a cold start waits for about five of these")]
        if worst > SLOW_WORST:
            return [warn("round trip", finding, "look for a busy or swapping store: SLOWLOG GET, LATENCY DOCTOR")]
        return [ok("round trip", finding)]

    async def clock(self) -> Sequence[Check]:
        """Our clock against the server's; leases run on the server's, logs on ours."""
        if self._told is None or not self._told.clock:
            return []
        direction = "ahead of" if self._skew > 0 else "behind"
        finding = f"the store's is {_fine(abs(self._skew))} {direction} ours, give or take {_fine(self._unsure)}"
        if abs(self._skew) - self._unsure > SKEW:
            return [warn("clock", finding, "leases are safe, but ages and logs mislead: run NTP on both machines")]
        return [ok("clock", finding)]

    async def eviction(self) -> Sequence[Check]:
        """Whether a full store refuses, as it should, or forgets."""
        told = self._told
        if told is None or not told.eviction:
            return []
        limit = f"{size(told.used_memory)} used of {size(told.max_memory)}" if told.max_memory else "no limit"
        finding = f"{limit}, policy {told.eviction}"
        if told.eviction != "noeviction":
            advice = "set maxmemory-policy noeviction: truth that is evicted makes workers read storage again"
            return [warn("store memory", finding, advice)]
        if told.max_memory and told.used_memory > FULL * told.max_memory:
            return [warn("store memory", finding, "raise maxmemory: a full store refuses adverts")]
        return [ok("store memory", finding)]

    async def _claim(self, bus: Bus) -> float:
        """Seconds that one claim took, which finds nobody and elects nobody."""
        claim = Claim(_SHARD, _SHARD, _SHARD, secrets.token_hex(8), b"", lead_seconds=0)
        began = time.perf_counter()
        await bus.claim(claim)
        return time.perf_counter() - began

    async def _introduce(self, bus: Bus) -> Check:
        from coldstart.bus.redis import RedisBus
        from coldstart.bus.sealed import SealedBus

        bus = bus.inner if isinstance(bus, SealedBus) else bus
        what = "the embedded store" if self.embedded else "the store"
        if not isinstance(bus, RedisBus):
            return ok("store", f"{what} answers")
        wall, began = time.time(), time.perf_counter()
        try:
            told = await bus.describe()
        except BusError as error:
            advice = "nothing need be done; grant INFO and TIME to have its clock and memory checked"
            return warn("store", f"{what} answers and does not describe itself: {error.what}", advice)
        self._unsure = (time.perf_counter() - began) / 2
        self._skew, self._told = told.clock - (wall + self._unsure), told
        return ok("store", f"{what} answers: {' '.join((told.product, told.version)).strip()}")

    def _running(self) -> str:
        from coldstart.bus.embedded import running

        return running(self._settings.embedded_directory)


def _fine(value: float) -> str:
    """A short time with the digits that matter."""
    return f"{value * 1000:.2f} ms" if value < 0.1 else seconds(value)
