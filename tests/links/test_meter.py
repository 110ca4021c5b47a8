"""A pull's rate, and when its probe is over, in virtual time."""

from __future__ import annotations

import threading

import anyio
import anyio.lowlevel
import pytest

from coldstart.layout import Span
from coldstart.links.meter import PROBE_BYTES, PROBE_SECONDS, Meter
from coldstart.links.rates import Moved
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime

MIB = 1 << 20


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


async def land(meter: Meter, *steps: tuple[float, int]) -> list[Span]:
    """Let MiB land, each after so many seconds."""
    landed: list[Span] = []
    count, offset = meter.counting(landed.append), 0
    for seconds, mib in steps:
        await anyio.sleep(seconds)
        count(Span(offset, mib * MIB))
        offset += mib * MIB
    return landed


async def test_what_counts_is_the_time_in_which_bytes_came() -> None:
    meter = Meter()
    landed = await land(meter, (3.0, 1), (1.0, 10), (1.0, 10))
    await anyio.sleep(50.0)
    assert meter.moved == Moved(20 * MIB, pytest.approx(2.0))
    assert [span.length for span in landed] == [MIB, 10 * MIB, 10 * MIB]


async def test_a_pull_that_tells_at_its_end_is_measured_as_a_whole() -> None:
    meter = Meter()
    await land(meter, (2.0, 20))
    assert meter.moved == Moved(20 * MIB, pytest.approx(2.0))
    await land(meter, (1.0, 4))
    assert meter.moved == Moved(24 * MIB, pytest.approx(3.0)), "most of it came at once"


async def test_a_pull_of_nothing_has_no_rate() -> None:
    meter = Meter(probing=True)
    meter.end()
    await meter.probed()
    assert meter.moved == meter.probe == Moved()
    assert meter.moved.rate == 0


async def test_without_a_probe_nothing_waits() -> None:
    began = anyio.current_time()
    await Meter().probed()
    assert anyio.current_time() == began


@pytest.mark.parametrize(
    ("steps", "seconds", "seen"),
    [
        (((1.0, 1), *((0.05, 10),) * 20), 1.0 + PROBE_SECONDS, 50 * MIB),
        (((1.0, 1), (0.01, PROBE_BYTES // MIB), (0.05, 10)), 1.01, PROBE_BYTES),
    ],
    ids=["by its time", "by its bytes"],
)
async def test_a_probe_is_over_in_time(steps: tuple[tuple[float, int], ...], seconds: float, seen: int) -> None:
    meter, over = Meter(probing=True), 0.0
    began = anyio.current_time()

    async def wait() -> None:
        nonlocal over
        await meter.probed()
        over = anyio.current_time() - began

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await land(meter, *steps)
    assert over == pytest.approx(seconds, abs=0.001)
    assert meter.probe.nbytes == pytest.approx(seen, abs=10 * MIB)
    assert meter.moved.nbytes > meter.probe.nbytes


async def test_a_probe_ends_with_its_pull() -> None:
    meter = Meter(probing=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(meter.probed)
        await land(meter, (0.01, 1), (0.01, 8))
        meter.end()
    assert meter.probe == meter.moved == Moved(8 * MIB, pytest.approx(0.01))


async def test_spans_are_counted_whatever_thread_they_come_from() -> None:
    meter = Meter(probing=True)
    count = meter.counting(lambda span: None)
    threads = [threading.Thread(target=lambda: [count(Span(0, 1)) for _ in range(2000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    await anyio.lowlevel.checkpoint()
    assert meter._nbytes == 8000
