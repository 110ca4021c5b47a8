"""Processes killed and stopped."""

from __future__ import annotations

import pytest
from rig.case import Case
from rig.fleet import Fleet

pytestmark = [pytest.mark.faults]
SLOW = 0.008
"""GB/s at which a source lends where a transfer is to last: three seconds for the checkpoint."""


@pytest.mark.fault("source killed", "TRANSFER", "the rest from storage, what was verified is kept", 0.2)
async def test_source_killed_in_transfer(workers: Fleet, case: Case) -> None:
    source = await workers.serving("source", lend_gbps=SLOW)
    joiner = await workers.start("joiner")
    before = await joiner.reached("TRANSFER", nbytes=1)
    source.kill()
    with case.clock():
        report = await joiner.serving()
    assert report.path == "mixed"
    assert report.bytes_peer >= before.bytes_verified
    assert report.bytes_peer + report.bytes_storage == report.bytes_total
    assert any(reason.startswith("source: ") for reason in report.detours)
    await workers.check(joiner)
    await workers.check_lends(joiner)
