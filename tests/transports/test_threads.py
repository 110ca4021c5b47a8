"""Blocking calls in threads: what comes back, who waits, and what a call that never returns keeps alive."""

from __future__ import annotations

import subprocess
import sys
import threading

import anyio
import anyio.to_thread
import pytest

from coldstart.transports.threads import in_thread


async def test_what_a_call_returns_or_raises_comes_back() -> None:
    assert await in_thread(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


async def test_a_cancelled_caller_waits_for_a_call_that_has_begun() -> None:
    begun, release, ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        release.wait(10)
        ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(in_thread, call)
        await anyio.to_thread.run_sync(begun.wait, 10)
        tasks.cancel_scope.cancel()
        release.set()
    assert ended.is_set()


async def test_a_cancelled_caller_begins_nothing() -> None:
    begun = threading.Event()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await in_thread(begun.set)
    assert not begun.is_set()


STUCK = """
import asyncio
import threading
from coldstart.transports.threads import in_thread

async def main():
    task = asyncio.create_task(in_thread(threading.Event().wait))
    await asyncio.sleep(0.1)
    raise SystemExit(9)

asyncio.run(main())
"""


@pytest.mark.processes
def test_a_call_that_never_returns_does_not_keep_the_process() -> None:
    """The loop ends while the thread is in its call, and then the interpreter does."""
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 9, done.stderr
    assert done.stderr == ""
