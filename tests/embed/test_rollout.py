"""A rolling replacement under constant load loses no request, with the store or without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.embed.rollout import KINDS, Outcome, roll

pytestmark = pytest.mark.processes

Record = Callable[[Outcome], None]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("example", "count"),
    [
        ("fastapi", 2),
        ("asyncio", 1),
        pytest.param("fastapi", 4, marks=pytest.mark.embed),
        pytest.param("asyncio", 4, marks=pytest.mark.embed),
    ],
)
async def test_replacing_all_workers_under_load_loses_no_request(
    example: str, count: int, place: Path, record: Record
) -> None:
    """Each new worker reads an old one's memory; the last one starts when the store is gone, and reads storage."""
    outcome, failures = await roll(KINDS[example], place, count)
    record(outcome)
    assert not failures
    assert outcome.requests > 0
    assert [new.path for new in outcome.replaced] == ["peer"] * (count - 1) + ["storage"]
