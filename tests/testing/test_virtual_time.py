"""Virtual time: waiting is free, deadlocks are errors, threads are waited for."""

from __future__ import annotations

import time

import anyio
import anyio.to_thread
import pytest

from coldstart.testing.virtual_time import VIRTUAL_TIME, Deadlock, OrderlyLoop, VirtualTime


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


async def test_an_hour_costs_nothing_and_timers_keep_their_order() -> None:
    began, now = time.monotonic(), anyio.current_time()
    woken: list[float] = []

    async def wait(seconds: float) -> None:
        await anyio.sleep(seconds)
        woken.append(anyio.current_time() - now)

    async with anyio.create_task_group() as tasks:
        for seconds in (3600.0, 0.1, 60.0):
            tasks.start_soon(wait, seconds)
    assert woken == pytest.approx([0.1, 60.0, 3600.0])
    assert time.monotonic() - began < 5.0


async def test_time_stands_still_while_a_worker_thread_runs() -> None:
    now = anyio.current_time()

    def work() -> float:
        time.sleep(0.02)  # real work, in a thread
        return anyio.from_thread.run_sync(anyio.current_time)

    with anyio.move_on_after(0.001) as scope:
        assert await anyio.to_thread.run_sync(work) == now
    assert not scope.cancelled_caught
    assert anyio.current_time() == now


async def test_timeouts_still_fire_in_order_with_threads() -> None:
    with anyio.move_on_after(5.0) as scope:
        for _ in range(100):
            await anyio.to_thread.run_sync(int)
        await anyio.sleep(10.0)
    assert scope.cancelled_caught


def test_a_deadlock_is_an_error_at_once() -> None:
    async def stuck() -> None:
        await anyio.Event().wait()

    backend, options = VIRTUAL_TIME
    with pytest.raises(Deadlock):
        anyio.run(stuck, backend=backend, backend_options=dict(options))


@pytest.mark.parametrize("slow", [0, 1])
def test_an_orderly_loop_hears_threads_in_the_order_of_their_start(slow: int) -> None:
    heard: list[int] = []

    async def work(number: int) -> None:
        await anyio.to_thread.run_sync(time.sleep, 0.02 if number == slow else 0.0)
        heard.append(number)

    async def both() -> float:
        began = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work, 0)
            tasks.start_soon(work, 1)
        return anyio.current_time() - began

    assert anyio.run(both, backend="asyncio", backend_options={"loop_factory": OrderlyLoop}) == 0.0
    assert heard == [0, 1]
