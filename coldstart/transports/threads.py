"""Blocking work in threads that a cancelled caller can trust to have ended.

Decides how threads meet structured concurrency: they run under a limiter of their own, so that
nobody else's threads are taken, and no caller leaves before they have. It must not know what
they do. Used by ``tcp.py`` and ``storage.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
from anyio import CancelScope, CapacityLimiter, to_thread


async def run_in_threads(count: int, work: Callable[[], None], stop: Callable[[], None]) -> None:
    """Run ``work`` in ``count`` threads at once and return when all have returned.

    When cancelled, ``stop`` is called, which must make them return soon; they are still waited
    for. ``work`` must not raise; ``stop`` is also called after the last one, where it does nothing.
    """
    if count == 0:
        return
    limiter = CapacityLimiter(count)
    running = count
    watch = CancelScope()  # of its own, so that its end leaves no traceback that refers to ``stop``

    async def one() -> None:
        nonlocal running
        await to_thread.run_sync(work, limiter=limiter)  # shielded by itself once the thread has begun
        running -= 1
        if running == 0:
            watch.cancel()

    async def stop_when_cancelled() -> None:
        with watch:
            try:
                await anyio.sleep_forever()
            finally:
                stop()

    async with anyio.create_task_group() as group:
        group.start_soon(stop_when_cancelled)
        for _ in range(count):
            group.start_soon(one)
