"""Something that goes on beside a block, and ends with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio


@asynccontextmanager
async def beside(call: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run ``call`` while the block runs.

    It is cancelled by a scope of its own: the cancellation of a whole task leaves a traceback in a
    circle, and with it everything that the task's frames refer to, such as the weights' memory.
    """
    scope = anyio.CancelScope()

    async def run() -> None:
        with scope:
            await call()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        try:
            yield
        finally:
            scope.cancel()
