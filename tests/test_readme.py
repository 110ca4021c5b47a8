"""The README says what is so: its picture is the machine's, its commands exist, its code compiles."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest

from coldstart.cli.main import app
from coldstart.diagram import insert

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = "".join((ROOT / "docs" / name).read_text() for name in ("embed.md", "groups.md", "lending.md"))


def test_the_picture_of_the_states_is_current() -> None:
    assert insert(README) == README, "run: make diagram"


def test_every_command_in_the_readme_exists() -> None:
    known = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    known |= {str(group.name) for group in app.registered_groups}
    assert set(re.findall(r"\bcoldstart (worker|demo|peers|plugins|doctor|bench)\b", README)) <= known
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([a-z]+)", README, re.MULTILINE)) <= targets


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README + PAGES, re.DOTALL))
def test_python_in_the_readme_and_on_the_pages_compiles(block: str) -> None:
    ast.parse("async def main():\n" + textwrap.indent(block, "    "))


def test_nothing_is_left_to_fill_in() -> None:
    assert not re.findall(r"\b[A-Z]+_TABLE\b|\bTBD\b|\bTODO\b", README)


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) < 150
