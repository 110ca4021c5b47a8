"""The GPU benchmark: it runs without a GPU, nothing that goes wrong in a case harms another, and how results read."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import msgspec
import pytest

from benchmarks.gpu import cases, models, page, pair, stored, table, workingtree
from benchmarks.gpu.run import Plan, Run
from benchmarks.gpu.words import Facts, Figure, Message, Order, Result, Role, Row

ROOT = Path(__file__).parents[2]


@pytest.mark.processes
def test_the_script_runs_at_toy_sizes_without_a_gpu(tmp_path: Path) -> None:
    output = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--cpu", "--json", str(output)]
    with tempfile.TemporaryDirectory() as short:  # a socket lies below it
        environ = {**os.environ, "TMPDIR": short}
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=55)
        left = list(Path(short).glob("coldstart-gpu-*"))
    assert done.returncode == 0, done.stderr
    result = msgspec.json.decode(output.read_bytes(), type=Result)
    measured = {row.label for row in result.rows if row.figure is not None}
    missing = {row.label: row.missing for row in result.rows if row.figure is None}
    assert {"tcp: pull", "tcp: pull, verified as it lands", cases.SOCKET, cases.READING, cases.LOAD_HOT} <= measured
    assert any(label.startswith("tcp: cold start from a peer") for label in measured)
    assert any(label.startswith("cold start from storage") for label in measured)
    assert "tcp: product while lending / alone" in measured
    unexpected = {label: why for label, why in missing.items() if "needs CUDA" not in why and "install" not in why}
    assert not unexpected
    assert missing["loop llama"] == "needs CUDA"
    assert all(row.share is not None for row in result.rows if row.limit and row.figure and row.figure.unit == "GB/s")
    assert "verified as it lands" in done.stdout
    assert left == []


# --------------------------------------------------------------------------------- cases that go wrong


@pytest.fixture
def mishap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[Message]]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return tmp_path, []


def orders(function: str, directory: Path) -> tuple[Order, Order]:
    def order(role: Role) -> Order:
        log = str(directory / f"{role}.log")
        return Order("mishap", f"mishaps:{function}", role, ("cpu", "cpu"), "llama", "toy", 1, {}, str(directory), log)

    return order("source"), order("joiner")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("well", ""),
        ("crash", "source died: SIGSEGV"),
        ("fail", "RuntimeError: no such luck"),
        ("hang", "stopped after 3 s; it last printed: waiting for nothing"),
    ],
)
def test_what_was_said_before_a_mishap_is_kept(function: str, why: str, mishap: tuple[Path, list[Message]]) -> None:
    directory, heard = mishap
    pair.warm()
    began = time.monotonic()
    assert pair.run(orders(function, directory), 3.0 if function == "hang" else 30.0, heard.append) == why
    assert heard == [Figure("before", "GB/s", (1.0,))]
    assert time.monotonic() - began < 25


@pytest.mark.processes
def test_a_case_that_cannot_run_says_why(mishap: tuple[Path, list[Message]]) -> None:
    directory, heard = mishap
    assert pair.run(orders("refuse", directory), 30.0, heard.append) == "needs a miracle"
    assert not heard


def test_cases_that_the_run_has_no_time_for_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = Facts({"torch": "1"}, ("a", "b"), {"tcp": "", "nccl": "not installed"}, {"fast": "not installed"})

    def only_facts(orders: tuple[Order, Order], seconds: float, hear: object) -> str:
        assert callable(hear)
        hear(facts)
        return ""

    monkeypatch.setattr(pair, "run", only_facts)
    shown: list[str] = []
    result = Run(Plan(("cuda:0", "cuda:1"), "full", 1, seconds=0.0), shown.append).run()
    assert {row.missing for row in result.rows} == {"the 0 s of this run were over", "not installed"}
    assert any("pull tcp llama" in line and "not measured" in line for line in shown)


def test_a_working_tree_that_is_not_installed_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workingtree, "entry_points", lambda group: ())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    workingtree.register()
    found = {point.name: point.value for point in entry_points(group="coldstart.transports") if _stands_in(point)}
    assert found["tcp"] == "coldstart.transports.tcp:FACTORY"
    first, *others = os.environ["PYTHONPATH"].split(os.pathsep)
    assert first == "elsewhere"
    assert set(others) <= set(sys.path)


def _stands_in(point: EntryPoint) -> bool:
    return point.dist is not None and point.dist.name == "coldstart-working-tree"


def test_the_page_cache_is_looked_into(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(1 << 20))
    assert stored.cached_share([file]) == 1.0


# ------------------------------------------------------------------------------------------- the models


@pytest.mark.parametrize(
    ("name", "tensors", "gigabytes"), [("llama", 291, 16.06), ("moe", 4608, 14.50), ("large", 318, 64.1)]
)
def test_the_models_have_the_sizes_they_are_said_to_have(name: str, tensors: int, gigabytes: float) -> None:
    layout = models.layout(name, "full")
    assert len(layout.tensors) == tensors
    assert layout.payload / 1e9 == pytest.approx(gigabytes, rel=0.003)
    assert models.layout(name, "toy").payload < 1 << 25


def test_the_order_of_a_run_is_limits_first() -> None:
    facts = Facts({}, ("gpu",), {"tcp": "", "nccl": "", "transfer-engine": "broken"}, {"a": "not installed", "b": ""})
    names = [case.name for case in cases.plan(facts, "full")]
    assert names[:4] == ["limit copy", "limit nccl", "limit engine", "limit socket"]
    assert len(set(names)) == len(names)
    assert "load b" in names
    assert "load a" not in names
    assert not [case for case in cases.plan(facts, "quick") if case.model == "large"]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["moe"], ["limit copy", "limit nccl", "limit socket", "loop moe", "pull tcp moe", "pull nccl moe"]),
        (["start tcp"], ["limit socket", "checkpoint", "start tcp"]),
        (["start storage"], ["checkpoint", "load_file", "start storage"]),
        (["digest"], ["digest"]),
    ],
)
def test_cases_bring_what_they_need(words: list[str], names: list[str]) -> None:
    facts = Facts({}, ("gpu",), {"tcp": "", "nccl": ""}, {"a": ""})
    assert [case.name for case in cases.wanted(cases.plan(facts, "full"), words)] == names


# --------------------------------------------------------------------------------------------- the looks

FIGURE = Figure("pull", "GB/s", (380.0, 390.0, 385.0), 176.04, "a | b")
ROWS = (
    Row("limits", "", "copy", Figure("copy", "GB/s", (394.2,))),
    Row("transports", "llama", "pull", FIGURE, "copy", 385.0 / 394.2),
    Row("transports", "moe", "pull", missing="needs two GPUs"),
)


def test_figures_take_the_better_end_of_their_unit() -> None:
    assert (FIGURE.best, FIGURE.median) == (390.0, 385.0)
    assert Figure("time", "ms", (3.0, 2.0)).best == 2.0


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(394.23, "GB/s", "394 GB/s"), (1.3956, "ms", "1.40 ms"), (0.0213, "s", "0.021 s"), (1.026, "ratio", "1.03")],
)
def test_numbers_have_three_digits_and_a_unit(value: float, unit: str, text: str) -> None:
    assert table.number(value, unit) == text


def test_lines_of_the_table() -> None:
    lines = [" ".join(table.line(row).split()) for row in ROWS]
    assert lines[1] == "llama pull 390 GB/s 385 GB/s 176 GB/s 0.98 of copy; a | b"
    assert lines[2] == "moe pull not measured: needs two GPUs"


@pytest.mark.parametrize("part", ["gpu", "another part"])
def test_the_page_is_replaced_between_its_markers_only(tmp_path: Path, part: str) -> None:
    result = Result("2026-11-30T10:00:00+00:00", "full", 431.0, {"driver": "580"}, ROWS)
    file, target = tmp_path / "gpu.json", tmp_path / "page.md"
    file.write_bytes(msgspec.json.encode(result))
    target.write_text(f"before\n<!-- {part}: begin -->\nold\n<!-- {part}: end -->\nafter\n")
    for _ in range(2):
        page.main([str(file), str(target), *([part] if part != page.PART else [])])
    text = target.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| llama | pull | 390 GB/s | 385 GB/s | 176 GB/s | 0.98 | of copy; a \\| b |" in text
    assert "- pull: needs two GPUs" in text
    assert "| driver | 580 |" in text
    with pytest.raises(ValueError, match="no <!-- gpu: begin -->"):
        page.placed("nothing", "x")


def test_the_page_of_this_repository_has_a_place_for_results() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    assert "\nx\n" in page.placed(text, "x", page.PART)
