"""What the tests of embedded workers hold, and the table of what was measured."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.embed.rollout import Outcome, table

_PROPERTY = "rollout"

Record = Callable[[Outcome], None]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Table())


class _Table:
    """Prints what the rollouts came to, whether or not they passed."""

    def __init__(self) -> None:
        self._outcomes: list[Outcome] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            found = (value for name, value in report.user_properties if name == _PROPERTY)
            self._outcomes += [msgspec.convert(value, Outcome) for value in found]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._outcomes:
            terminalreporter.write_line(table(self._outcomes))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The long rollouts are for ``make test-embed``."""
    if "embed" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("embed")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("embed")]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory on a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="cs") as directory:
        yield Path(directory)


@pytest.fixture
def record(record_property: Callable[[str, object], None]) -> Record:
    """Puts an outcome into the table."""

    def put(outcome: Outcome) -> None:
        record_property(_PROPERTY, msgspec.to_builtins(outcome))

    return put

