"""The README is finished, and short. Its picture, code, commands and links: ``tests/docs``, with those of all pages."""

from __future__ import annotations

import re
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_nothing_is_left_to_fill_in() -> None:
    assert not re.findall(r"\b[A-Z]+_TABLE\b|\bTBD\b|\bTODO\b", README)


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) < 150
