"""What the command line logs although nobody has asked for more lines: what befalls a worker that serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

import coldstart
from coldstart.cli import tracing
from coldstart.telemetry.logs import logger


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("json", [True, False])
def test_errors_and_what_nobody_else_says_are_shown(json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    tracing.set_up("w", verbose=0, json=json)()
    held = logger()
    for event in sorted(tracing.SAID_NOWHERE_ELSE):
        held.warning(event, error="why")
        held.info(event)
    held.warning("detour taken", reason="in the report, too")
    held.info("phase entered")
    held.debug("pulled")
    held.error("transport broke")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 * len(tracing.SAID_NOWHERE_ELSE) + 1
    assert "transport broke" in said[-1]


def test_who_asks_for_more_gets_more(capsys: pytest.CaptureFixture[str]) -> None:
    for verbose, lines in ((1, 2), (2, 3), (3, 4), (9, 4)):
        tracing.set_up("w", verbose=verbose, json=True)()
        for method in ("debug", "info", "warning", "error"):
            getattr(logger(), method)("something")
        assert len(capsys.readouterr().err.splitlines()) == lines


def test_what_is_shown_is_what_is_logged() -> None:
    root = Path(str(coldstart.__file__)).parent
    texts = "".join(file.read_text() for file in root.rglob("*.py") if file.name != "tracing.py")
    assert [event for event in sorted(tracing.SAID_NOWHERE_ELSE) if f'"{event}"' not in texts] == []
