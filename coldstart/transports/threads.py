"""Blocking work in threads that a cancelled caller can trust to have ended.

Decides how threads meet structured concurrency: they are of their own, so that nobody else's
threads are taken, and no caller leaves before they have. They are daemons: a system call that
never returns, on storage that hangs, must not keep the process from ending. It must not know
what they do. Used by ``tcp.py`` and ``storage.py``.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
from anyio import CancelScope

T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """What ``call`` returns or raises, from a thread of its own; once it has begun it is waited for."""
    await anyio.lowlevel.checkpoint_if_cancelled()
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()
    thread = threading.Thread(
        target=context.run, args=(_run, call, loop, done), name="coldstart-blocking", daemon=True
    )
    thread.start()
    try:
        with CancelScope(shield=True):
            await asyncio.wait({done})
            # For an instant: it has nothing left to do, and a join would block the loop.
            while thread.is_alive():  # noqa: ASYNC110
                await asyncio.sleep(0)
        return done.result()
    finally:
        done.cancel()  # by the loop's own end: nobody waits any more
        del done  # or an error and its own traceback would refer to each other


async def run_in_threads(count: int, work: Callable[[], None], stop: Callable[[], None]) -> None:
    """Run ``work`` in ``count`` threads at once and return when all have returned.

    When cancelled, ``stop`` is called, which must make them return soon; they are still waited
    for. ``work`` must not raise; ``stop`` is also called after the last one, where it does nothing.
    """
    if count == 0:
        return
    running = count
    watch = CancelScope()  # of its own, so that its end leaves no traceback that refers to ``stop``

    async def one() -> None:
        nonlocal running
        await in_thread(work)
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


def _run(call: Callable[[], T], loop: asyncio.AbstractEventLoop, done: asyncio.Future[T]) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        try:
            result = call()
        except BaseException as error:
            loop.call_soon_threadsafe(_fail, done, error)
        else:
            loop.call_soon_threadsafe(_succeed, done, result)


def _succeed(done: asyncio.Future[Any], result: object) -> None:
    if not done.done():
        done.set_result(result)


def _fail(done: asyncio.Future[Any], error: BaseException) -> None:
    if not done.done():
        done.set_exception(error)
