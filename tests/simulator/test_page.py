"""docs/simulator.md says what is so: its lists are the code's, its examples run, its commands are taken."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from coldstart.cli import simulate_child, simulate_jobs
from coldstart.cli.main import app
from coldstart.testing import simulator
from coldstart.testing.simulator import Fault

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "simulator.md"
TEXT = PAGE.read_text()


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("simulator_page", PAGE.with_name("simulator_page.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def promises() -> Iterator[str]:
    """Every name under which the code notes a violation."""
    files = [*Path(simulator.__file__).parent.glob("*.py"), Path(simulate_child.__file__)]
    trees = [ast.parse(file.read_text()) for file in files]
    constants = {
        statement.targets[0].id: statement.value.value
        for tree in trees
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and isinstance(statement.value, ast.Constant)
    }
    for node in (node for tree in trees for node in ast.walk(tree)):
        match node:
            case ast.Call(func=ast.Attribute(attr="broken") | ast.Name(id="Violation"), args=[first, *_]):
                match first:
                    case ast.Constant(value=str(promise)):
                        yield promise
                    case ast.Name(id=name) if name.isupper():
                        yield constants[name]
                    case _:
                        assert ast.unparse(first) == "promise", f"unclear which promise: {ast.unparse(node)}"
            case _:
                pass


def test_the_table_of_faults_is_the_codes(script: ModuleType) -> None:
    assert script.between(TEXT, "faults", script.faults()) == TEXT, "run: python docs/simulator_page.py faults"
    assert all(f"| `{kind.value}` | " in TEXT for kind in Fault)


def test_the_table_of_promises_is_the_codes() -> None:
    table = TEXT.partition("## Promises")[2].partition("\n## ")[0]
    told = set(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)) - {"violation"}
    assert told == set(promises())


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL))
def test_python_on_the_page_runs(block: str) -> None:
    exec(compile(block, str(PAGE), "exec"), {"__name__": "page"})


@pytest.mark.parametrize("line", re.findall(r"^(coldstart simulate.*?) *(?:#.*)?$", TEXT, re.MULTILINE))
def test_commands_on_the_page_are_taken(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate_jobs, "plays", lambda task, seeds, jobs, stop: (nothing for nothing in ()))
    done = CliRunner().invoke(app, shlex.split(line)[1:])
    assert done.exit_code == 0, done.output


def test_files_and_targets_on_the_page_are_there() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`make ([a-z]+)", TEXT)) <= set(targets)
    assert not [name for name in re.findall(r"`(tests/[a-z/_.]+)`", TEXT) if not (ROOT / name).exists()]


@pytest.mark.processes
def test_a_soak_writes_what_it_found(script: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- faults: begin -->\n<!-- faults: end -->\n<!-- soak: begin -->\nstale\n<!-- soak: end -->\n"
    )
    assert script.soak(page, 50, {3: 4, 8: 2}, least=30) == 0
    assert capfd.readouterr().out.splitlines()[0] == "coldstart simulate --workers 3 --seeds 50..53 --faults all --json"
    written = page.read_text()
    assert written.startswith("before\n<!-- faults: begin -->\n| kind |")
    assert re.search(r"\*\*\d+ cold starts\*\* in 6 fleets", written)
    assert re.search(r"^\| 8 \| 50\.\.51 \| \d+ \| \d+ \| [\d,]+ \| 0 \|$", written, re.MULTILINE)
    assert "**0 violations**" in " ".join(written.split())
    assert "stale" not in written


@pytest.mark.processes
def test_a_soak_that_is_too_short_is_not_written(script: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("as it was")
    assert script.soak(page, 50, {3: 1}, least=100_000) == 1
    assert script.soak(page, 50, {0: 1}, least=1) == 2
    assert page.read_text() == "as it was"


def test_the_last_soak_broke_no_promise(script: ModuleType) -> None:
    last = " ".join(TEXT.partition("<!-- soak: begin -->")[2].split())
    found = re.search(r"\*\*([\d,]+) cold starts\*\* .* \*\*([\d,]+) violations\*\*", last)
    assert found is not None, "run: make soak"
    assert int(found[1].replace(",", "")) >= script.COLD_STARTS
    assert found[2] == "0"
