"""docs/fleet.md says what its results say, and the picture is drawn from them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from benchmarks.fleet import coordination, results
from coldstart.cli import bench_fleet_results as simulated
from coldstart.cli.bench_results import Bar, figure

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "fleet.md").read_text()


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fleet_page", DOCS / "fleet_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def result() -> simulated.Result:
    return msgspec.json.decode((DOCS / "fleet.json").read_bytes(), type=simulated.Result)


def test_the_page_shows_the_result_beside_it(script: ModuleType, result: simulated.Result) -> None:
    assert script.between(PAGE, "simulated", script.simulated_part(result)) == PAGE
    assert f"`{result.command}`" in PAGE.replace("\n", " ")


def test_the_picture_is_one_with_its_words(result: simulated.Result) -> None:
    picture = (DOCS / "fleet.svg").read_text()
    assert picture.startswith("<?xml")
    for words in ("simulated", "storage for all", "doubling", "chain", "perfect pipeline", "1,024"):
        assert f">{words}<" in picture


def test_the_picture_is_the_same_for_the_same_result(
    script: ModuleType, result: simulated.Result, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="make plot-fleet installs it")
    script.draw(result, tmp_path / "one.svg")
    script.draw(result, tmp_path / "other.svg")
    assert (tmp_path / "one.svg").read_text() == (tmp_path / "other.svg").read_text()


def test_what_was_measured_here_is_told_with_its_verdict(script: ModuleType) -> None:
    found = coordination.Result(
        version="1", python="3", store="Valkey 9", cpus=2, load=0.5, date="2026-01-01", cases=(),
        bars=(Bar("calls", 9.0, 8.0, "", met=False),),
    )  # fmt: skip
    assert "- MISSED: calls: 9, at most 8" in script.joiners_part(found).splitlines()
    shaped = results.Result(
        version="1", python="3", kernel="6", cpus=2, load=0.5, store="valkey 9", date="2026-01-01", nbytes=10**8,
        mbit=200.0, storage=25e6, settings={"patience": "60"}, cases=(),
    )  # fmt: skip
    assert "settings: patience 60." in script.links_part(shaped)


def test_every_part_of_the_page_is_there() -> None:
    markers = re.findall(r"<!-- (\w+): begin -->\n(.*?)<!-- \1: end -->", PAGE, re.DOTALL)
    assert [name for name, _ in markers] == ["simulated", "links", "joiners"]
    assert all(body.strip() for _, body in markers)


def test_percentiles_are_the_highest_where_there_are_few() -> None:
    assert coordination.p99(figure("ms", [1.0, 3.0, 2.0])) == 3.0
