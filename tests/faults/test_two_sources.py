"""One joiner, two sources whose lenders have capped them: both give, none more than it may, and either may die."""

from __future__ import annotations

import pytest
from rig.case import Case
from rig.fleet import Fleet, Worker

pytestmark = pytest.mark.faults
fault = pytest.mark.fault

CAP = 0.005
"""GB/s: five seconds for the checkpoint from one, so that a second one is worth its while."""


async def capped(workers: Fleet) -> tuple[Worker, Worker]:
    return await workers.serving("a", lend_gbps=CAP), await workers.serving("b", lend_gbps=CAP)


async def test_a_lone_joiner_takes_from_both_what_they_may_give(workers: Fleet) -> None:
    a, b = await capped(workers)
    joiner = await workers.start("joiner")
    report = await joiner.serving()
    assert (report.path, set(report.sources)) == ("peer", {"a", "b"})
    assert sum(attempt.bytes for attempt in report.attempts) == report.bytes_total, "verified, each once"
    least = report.bytes_total / 5
    for attempt in report.attempts:
        assert attempt.bytes > least
        assert attempt.bytes / attempt.seconds < 1.25 * CAP * 1e9, "no source gives more than it may"
    await workers.check(joiner)
    await workers.lends_nothing(a)
    await workers.lends_nothing(b)


@pytest.mark.parametrize("which", [0, 1], ids=["the first", "the second"])
@fault("one of two sources at once killed", "TRANSFER", "what both sent is kept, the other one sends the rest", 5.0)
async def test_one_of_them_is_killed(which: int, workers: Fleet, case: Case) -> None:
    sources = await capped(workers)
    joiner = await workers.start("joiner")
    await workers.advertised("a", "b", used=1)
    progress = await joiner.reached("TRANSFER", nbytes=1)
    first = next(source for source in sources if source.name == progress.source)
    other = next(source for source in sources if source is not first)
    dead, left = (first, other) if which == 0 else (other, first)
    dead.kill()
    with case.clock():
        report = await joiner.serving()
    assert (report.path, report.bytes_storage) == ("peer", 0)
    assert left.name in report.sources
    await workers.check(joiner)
    await workers.lends_nothing(left)
