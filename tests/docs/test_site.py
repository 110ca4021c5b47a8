"""The documentation builds without a warning, every page has a place in it, and generated pages are current."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coldstart.diagram import BEGIN, edges_of, insert
from coldstart.machine import EDGES
from docs import settings_page
from tests.docs.pages import ROOT, pages


@pytest.mark.timeout(200)  # six seconds, on a machine that has nothing else to do
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    made = {path.stem for path in (tmp_path / "site").glob("*.html")}
    assert {page.stem for page in ROOT.glob("docs/*.md")} <= made
    assert "Cold-start this process" in (tmp_path / "site" / "api.html").read_text()
    states = (tmp_path / "site" / "how-it-works.html").read_text()
    assert 'src="states.svg"' in states
    assert (tmp_path / "site" / "states.svg").exists()
    assert "mermaid" not in states, "it would be fetched from elsewhere"


def test_the_page_of_settings_is_current() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == settings_page.page(), "run: make docs"


def test_every_time_says_what_it_is_for() -> None:
    assert [f"{each.module}.{each.name}" for each in settings_page.fixed() if not each.about] == []
    assert len(list(settings_page.fixed())) > 20


@pytest.mark.parametrize("page", [page for page in pages() if BEGIN in page.read_text()], ids=lambda page: page.name)
def test_the_picture_of_the_states_is_current(page: Path) -> None:
    assert insert(page.read_text()) == page.read_text(), "run: make diagram"


def test_the_picture_of_the_site_shows_the_machines_own_edges() -> None:
    drawn = edges_of((ROOT / "docs" / "states.svg").read_text())
    assert sorted(drawn) == sorted((str(before), str(after)) for before, after in EDGES), "run: make diagram"
