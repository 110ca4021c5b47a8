"""``coldstart plugins``: everything installed is a row, also what is broken."""

import json
from typing import Any

import pytest

pytestmark = pytest.mark.processes


def test_it_lists_what_comes_with_the_core(coldstart: Any) -> None:
    done = coldstart("plugins")
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = [line.split() for line in done.stdout.splitlines()]
    assert head == ["kind", "name", "distribution", "version", "usable", "reason"]
    assert ["transport", "tcp", "coldstart-weights", "yes"] in [[*row[:3], row[4]] for row in rows]
    assert ["skeleton", "tensors", "coldstart-weights", "yes"] in [[*row[:3], row[4]] for row in rows]
    assert "\x1b" not in done.stdout


def test_a_broken_plugin_is_a_row_with_its_reason(coldstart: Any, broken_plugin: str) -> None:
    done = coldstart("plugins", "--json", PYTHONPATH=broken_plugin)
    assert (done.returncode, done.stderr) == (0, "")
    (warp,) = [row for row in json.loads(done.stdout)["plugins"] if row["name"] == "warp"]
    assert warp.pop("reason").endswith("ImportError: libwarp.so.3: cannot open [shared] object file")
    assert warp == {
        "kind": "transport",
        "name": "warp",
        "distribution": "broken-transport",
        "version": "2.5",
        "usable": False,
    }


def test_a_terminal_shows_the_whole_reason(coldstart: Any, broken_plugin: str) -> None:
    done = coldstart("plugins", PYTHONPATH=broken_plugin, FORCE_COLOR="1", COLUMNS="300")
    assert done.returncode == 0
    assert "cannot open [shared] object file" in done.stdout
