"""Constant load: so many requests a second, whether or not the ones before are answered."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup

TOLERANCE = 1e-4
"""Two processes may place the same weights in differently aligned memory, and sum in another order."""

Ask = Callable[[], Awaitable[Sequence[float]]]


class Load:
    """What came of the requests: seconds of each that was answered rightly, and what befell the others."""

    def __init__(self, ask: Ask, expected: Sequence[float], rate: float) -> None:
        self.seconds: list[float] = []
        self.failures: list[str] = []
        self._ask, self._expected, self._rate = ask, expected, rate

    @property
    def requests(self) -> int:
        return len(self.seconds) + len(self.failures)

    def percentile(self, share: float) -> float:
        """Seconds within which ``share`` of those that were answered was answered; infinite where none was."""
        ordered = sorted(self.seconds)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.inf

    async def run(self, tasks: TaskGroup) -> None:
        """Send until cancelled; requests under way are ``tasks``'."""
        began, sent = anyio.current_time(), 0
        while True:
            tasks.start_soon(self._one)
            sent += 1
            await anyio.sleep_until(began + sent / self._rate)

    async def _one(self) -> None:
        began = anyio.current_time()
        try:
            got = await self._ask()
        except (OSError, TimeoutError, ValueError) as error:
            self.failures.append(f"at {began:.2f}: {error!r}")
            return
        if not all(math.isclose(a, b, abs_tol=TOLERANCE) for a, b in zip(got, self._expected, strict=True)):
            self.failures.append(f"at {began:.2f}: {got} instead of {self._expected}")
            return
        self.seconds.append(anyio.current_time() - began)


@asynccontextmanager
async def load(ask: Ask, expected: Sequence[float], rate: float) -> AsyncIterator[Load]:
    """Load inside the block; at its end the last requests are waited for."""
    made = Load(ask, expected, rate)
    async with anyio.create_task_group() as requests, anyio.create_task_group() as sending:
        sending.start_soon(made.run, requests)
        yield made
        sending.cancel_scope.cancel()
