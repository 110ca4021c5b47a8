"""Leaves all but the quick families out, unless the zoo is asked for (``-m zoo``)."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "zoo" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("zoo")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("zoo")]
