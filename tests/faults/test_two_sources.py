"""One joiner, sources whose lenders have capped them: all give, none more than it may, and either of two may die."""

from __future__ import annotations

import pytest
from rig.case import Case
from rig.fleet import Fleet, Worker

pytestmark = pytest.mark.faults
fault = pytest.mark.fault

CAP = 0.005
"""GB/s: five seconds for the checkpoint from one, so that others are worth their while."""


async def capped(workers: Fleet, names: str = "ab") -> list[Worker]:
    return [await workers.serving(name, lend_gbps=CAP) for name in names]


@pytest.mark.parametrize("names", ["ab", "abcd"], ids=["two", "four"])
async def test_a_lone_joiner_takes_from_all_what_they_may_give(names: str, workers: Fleet) -> None:
    sources = await capped(workers, names)
    joiner = await workers.start("joiner")
    report = await joiner.serving()
    assert (report.path, set(report.sources)) == ("peer", set(names))
    assert sum(attempt.bytes for attempt in report.attempts) == report.bytes_total, "verified, each once"
    assert len(report.attempts) == len(names)
    least = report.bytes_total / (3 * len(names))
    for attempt in report.attempts:
        assert attempt.bytes > least
        assert attempt.bytes / attempt.seconds < 1.25 * CAP * 1e9, "no source gives more than it may"
    await workers.check(joiner)
    for source in sources:
        await workers.lends_nothing(source)


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
