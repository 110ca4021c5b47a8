"""The rollout over shaped links: its table and bar, a small one for real, and that it skips and cleans up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import msgspec
import pytest

from benchmarks.fleet import joiners
from benchmarks.fleet.__main__ import main
from benchmarks.fleet.network import NotAllowed, network
from benchmarks.fleet.results import Case, Result, Start, table, verdicts
from coldstart.chronicle.starts import Path as Way
from coldstart.phases.states import Phase
from coldstart.report import Report

ROOT = Path(__file__).parents[2]


def report(way: Way, *, stored: int = 0) -> Report:
    return Report(
        worker="w", shard="s", model="m", state=Phase.SERVE, path=way, verified=True, against="published truth",
        sources=(), transport="tcp", route="", bytes_total=10, bytes_peer=10 - stored, bytes_storage=stored, gbps=1.0,
        seconds=1.0, phases={}, attempts=(), timeline=(), detours=(), skipped=(), root="r",
        link_gbps=0.0, link_from="none", link_age=0.0, share=0.0, warnings=(),
    )  # fmt: skip


def result(*cases: Case) -> Result:
    return Result(
        version="1", python="3", kernel="6", cpus=2, load=0.1, store="valkey 9", date="2026-01-01", nbytes=10**8,
        mbit=200.0, storage=25e6, settings={}, cases=cases,
    )  # fmt: skip


def case(name: str, workers: int, holders: int, *seconds: float) -> Case:
    starts = [Start(f"w{number}", moment, report("peer")) for number, moment in enumerate(seconds)]
    return Case(name, workers, holders, 5.0, tuple(starts), {"evalsha": 7, "xread": 3})


def test_the_last_of_many_is_held_against_the_one_that_began_alike() -> None:
    found = result(
        case("1 from a holder", 1, 1, 4.0),
        case("2 from a holder", 2, 1, 4.1, 5.2),
        case("1 from storage", 1, 0, 2.0),
        case("2 from storage", 2, 0, 2.0, 6.0),
    )
    assert verdicts(found) == [
        "met: 2 from a holder: 1.30 times one alone, at most 1.4",
        "MISSED: 2 from storage: 3.00 times one alone, at most 1.4",
    ]
    rows = table(found).splitlines()
    assert "| 2 from a holder | 4.65 | 5.20 | 5.00 | 1.30 | 0 | peer 2 | 7 | 3 |" in rows
    assert msgspec.json.decode(msgspec.json.encode(found), type=Result) == found


def test_a_storage_read_is_counted_whatever_else_a_worker_had() -> None:
    starts = (Start("a", 1.0, report("mixed", stored=3)), Start("b", 1.0, report("peer")))
    assert Case("x", 2, 1, 5.0, starts, {}).storage_reads == 1


def test_where_no_network_may_be_made_it_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--workers", "1", "--mib", "1"]) == 0
    assert capsys.readouterr().out.startswith("skipped: shaped network namespaces cannot be made here: ")


@pytest.fixture
def allowed() -> None:
    try:
        with network(1, 100.0):
            pass
    except NotAllowed as reason:
        pytest.skip(str(reason))


def namespaces() -> set[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines()}


@pytest.mark.processes
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("allowed")
def test_a_small_rollout_for_real(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, kept, file = namespaces(), tmp_path / "kept", tmp_path / "result.json"
    words = ["--workers", "2", "--mib", "4", "--mbit", "100", "--set", "patience=60", "--json", str(file)]
    assert main([*words, "--keep", str(kept)]) == 0, capsys.readouterr().err
    found = msgspec.json.decode(file.read_bytes(), type=Result)
    link = 4 * 2**20 * 8 / 100e6
    assert [(each.workers, each.holders) for each in found.cases] == [(1, 1), (2, 1), (1, 0), (2, 0)]
    for each in found.cases:
        assert len(each.starts) == each.workers
        assert all(start.report.verified for start in each.starts)
        assert each.last >= 0.8 * link  # what a burst lets through at once is not waited for
        assert each.commands["evalsha"] > 0
        assert each.predicted >= 0.9 * link
    assert [each.storage_reads for each in found.cases] == [0, 0, 1, 1]
    assert {path.name for path in kept.glob("2-from-a-holder/*.jsonl")} == {"w0.jsonl", "w1.jsonl", "w2.jsonl"}
    assert namespaces() == before


@pytest.mark.processes
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("allowed")
def test_nothing_is_left_when_it_is_interrupted(tmp_path: Path) -> None:
    before, kept = namespaces(), tmp_path / "kept"
    command = [sys.executable, "-m", "benchmarks.fleet", "--workers", "1", "--mib", "1", "--keep", str(kept)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(kept.glob("*/w0.jsonl")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert namespaces() == before
    assert not _running(str(kept))


def _running(mark: str) -> list[str]:
    """Command lines of processes that were told of ``mark``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_text()
            except OSError:
                continue
            if mark in line:
                found.append(line)
    return found


# -------------------------------------------------------------------------- coordination alone


@pytest.mark.timeout(120)
def test_coordination_alone_is_counted_and_no_slot_is_given_twice() -> None:
    found = anyio.run(joiners.measure, 12, 60.0)
    single, room, share, spread = found.cases
    assert [each.name for each in found.cases] == ["single", "room", "share", "spread"]
    for each in found.cases:
        assert dict(each.paths) == {"peer": each.joiners}
        assert each.exceeded == ()
        assert each.most_slots_at_a_source <= each.slots
        assert each.claims >= each.joiners
    assert room.joiners == share.joiners == spread.joiners == 12
    assert room.most_slots_at_a_source == 12, "all pulls are held until everybody is through the HANDSHAKE"
    assert room.by_operation["claim"] == 1
    assert single.by_operation["claim"] == 1
    assert 0 < single.discover.median < 60_000
    told = msgspec.json.decode(msgspec.json.encode(found), type=joiners.Result)
    assert [each.by_operation for each in told.cases] == [each.by_operation for each in found.cases]
