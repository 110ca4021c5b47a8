"""The map for plugin authors, in the package's docstring, names what there is, and all of it."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

from coldstart import testing
from coldstart.testing import transports

PACKAGE = Path(testing.__file__).parent
MAP = inspect.getdoc(testing) or ""


@pytest.mark.parametrize("module", sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__"))
def test_every_module_is_on_the_map(module: str) -> None:
    assert re.search(rf"``{module}[`.]", MAP)


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*_contract.py")), ids=lambda path: path.stem)
def test_every_suite_is_on_the_map(path: Path) -> None:
    suites = [
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name.endswith("Contract")
    ]
    assert suites
    assert not [suite for suite in suites if f"``{suite}``" not in MAP]


def test_every_fault_is_on_the_map() -> None:
    faults = [
        name
        for name, kind in inspect.getmembers(transports, inspect.isclass)
        if issubclass(kind, transports.Wrapped) and kind is not transports.Wrapped
    ]
    assert not [fault for fault in faults if f"``{fault}``" not in MAP]


@pytest.mark.parametrize("name", re.findall(r"``(harness|virtual_time)\.(\w+)``", MAP), ids=".".join)
def test_what_is_named_exists(name: tuple[str, str]) -> None:
    module, attribute = name
    assert hasattr(import_module(f"coldstart.testing.{module}"), attribute)
