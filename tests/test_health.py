"""When a worker is ready, and how long it will still take: from progress alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from coldstart.health import Health, health_of
from coldstart.phases.states import Phase
from coldstart.report import Progress

HALF = Progress(Phase.TRANSFER, "a", 60, 50, 100, 10.0, 5.0, 2, "b: stalled")


def test_half_way_from_a_peer() -> None:
    health = health_of(HALF)
    assert health == Health(
        phase=Phase.TRANSFER,
        source="a",
        bytes_done=50,
        bytes_total=100,
        rate=10.0,
        eta=5.0,
        seconds=5.0,
        attempts=2,
        reason="b: stalled",
    )
    assert not health.ready


@pytest.mark.parametrize("verified", [False, True])
@pytest.mark.parametrize("draining", [False, True])
def test_ready_is_whose_weights_are_right_and_whose_host_does_not_end(verified: bool, draining: bool) -> None:
    health = health_of(HALF, verified=verified, draining=draining)
    assert health.ready is (verified and not draining)
    assert health.draining is draining


@pytest.mark.parametrize(
    ("phase", "verified", "total", "rate", "eta"),
    [
        (Phase.IDLE, 0, 0, 0.0, None),
        (Phase.DISCOVER, 50, 100, 10.0, None),
        (Phase.TRANSFER, 50, 100, 0.0, None),
        (Phase.FALLBACK, 50, 100, 25.0, 2.0),
        (Phase.VERIFY, 100, 100, 0.0, 0.0),
        (Phase.SERVE, 100, 100, 0.0, 0.0),
    ],
)
def test_nobody_says_how_long_while_nothing_moves(
    phase: Phase, verified: int, total: int, rate: float, eta: float | None
) -> None:
    progress = msgspec.structs.replace(HALF, phase=phase, bytes_verified=verified, bytes_total=total, rate=rate)
    assert health_of(progress).eta == eta


def test_what_it_failed_with_is_the_reason() -> None:
    failed = msgspec.structs.replace(HALF, phase=Phase.FAILED)
    assert health_of(failed, error="llama: no bytes").reason == "llama: no bytes"


def test_the_page_shows_what_is_told() -> None:
    page = (Path(__file__).parent.parent / "docs" / "embed.md").read_text()
    (block,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert list(json.loads(block)) == list(Health.__struct_fields__)
    msgspec.json.decode(block, type=Health)
