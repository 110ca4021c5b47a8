"""When a worker is ready, and how long it will still take: from progress alone."""

from __future__ import annotations

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


@pytest.mark.parametrize("phase", list(Phase))
def test_only_who_serves_and_is_not_about_to_end_is_ready(phase: Phase) -> None:
    progress = msgspec.structs.replace(HALF, phase=phase)
    assert health_of(progress).ready is (phase is Phase.SERVE)
    assert not health_of(progress, draining=True).ready


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
