"""bench: every part measured for real at a tiny size, its JSON, its refusals; and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from coldstart.checkpoint import read_checkpoint
from coldstart.cli import bench, bench_family, bench_room
from coldstart.cli.bench_results import Result, at_least, at_most, figure, ratio
from coldstart.cli.bench_words import Done, Imports, Plain, Prepare
from coldstart.errors import ColdstartError, ConfigError

MIB = 1024 * 1024

LABELS = {
    "tcp": {
        "plain socket (the limit)",
        "tcp pull",
        "tcp pull, digested as it lands",
        "cold start, TRANSFER phase",
        "cold start, building the skeleton",
        "cold start, from building to serving",
        "load_file, mapped and touched",
        "load_file, copied to own memory",
        "digest alone, 1 thread",
        "digest alone, 2 threads",
    },
    "handshake": {
        "DISCOVER to first byte",
        "of it DISCOVER: claim",
        "of it HANDSHAKE: truth and offer",
        "of it connecting, and the first range",
        "DISCOVER to first byte, a process's first",
    },
    "memory": {
        "imports only",
        "cold start from peer, beside imports and model",
        "cold start from storage, beside imports and model",
    },
    "import": {"import coldstart", "from coldstart import join"},
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the bench and its children make their files; also how their processes are known."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    for name in [name for name in os.environ if name.startswith("COLDSTART_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("coldstart.cli.bench_joins.STARTS", 3)
    return tmp_path


def running(place: Path) -> list[int]:
    """Processes, other than this one, that were told to use ``place``."""
    return list(_running(f"TMPDIR={place}".encode()))


def _running(mark: bytes) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


def ended(place: Path, seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while running(place) and time.monotonic() < until:
        time.sleep(0.02)
    return not running(place)


@pytest.mark.processes
@pytest.mark.parametrize("part", list(bench.PARTS))
def test_every_part_is_measured_and_leaves_nothing_behind(
    part: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.run((part,), mib=16, rounds=1, json=True)

    printed = capsys.readouterr()
    result = msgspec.json.decode(printed.out, type=Result)
    assert printed.out.count("\n") == 1
    assert printed.err == ""
    assert (result.mib, result.rounds, set(result.parts)) == (16, 1, {part})
    found = result.parts[part]
    assert set(found.figures) == LABELS[part]
    assert all(one.low <= one.median <= one.high and one.count >= 1 for one in found.figures.values())
    assert found.bars
    if part in ("tcp", "handshake"):
        assert all(one.low > 0 for one in found.figures.values())
    assert list(place.iterdir()) == []
    assert ended(place)


def test_import_brings_neither_torch_nor_redis() -> None:
    part = bench.PARTS["import"](0, 1, lambda text: None)
    assert "import coldstart brings none of torch, redis, numpy" in part.notes


def test_tables_and_progress_are_plain_lines_in_a_pipe(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench.run(("import",), mib=16, rounds=1, json=False)
    printed = capsys.readouterr()
    assert "from coldstart import join" in printed.out
    assert "bars" in printed.out
    assert "import: run 1 of 3" in printed.err.splitlines()
    assert "\x1b" not in printed.out + printed.err


def test_an_unknown_part_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(ConfigError, match="no part 'gpu' to bench; choose from tcp, handshake, memory, import"):
        bench.run(("tcp", "gpu"), mib=16, rounds=1, json=True)


@pytest.mark.parametrize("part", ["tcp", "memory"])
def test_a_model_without_room_is_refused_in_one_line(part: str, place: Path) -> None:
    with pytest.raises(ConfigError, match=r"^\d+ MiB .*; choose a smaller --mib") as caught:
        bench.run((part,), mib=1 << 30, rounds=1, json=True)
    assert "\n" not in str(caught.value)
    assert list(place.iterdir()) == []


def test_too_little_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_room, "_available", lambda: 512 * MIB)
    with pytest.raises(ConfigError, match="64 MiB need 620 MiB of memory, 512 MiB are available"):
        bench_room.need_room(tmp_path, 64 * MIB, arenas=4, processes=1)


@pytest.mark.parametrize("mib", [1, 32, 33])
def test_the_checkpoint_has_exactly_the_size_asked_for(mib: int, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(bench_room.write_checkpoint(tmp_path / "checkpoint", mib * MIB))
    assert sum(tensor.nbytes for tensor in checkpoint.tensors.values()) == mib * MIB


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_bench_leaves_no_process_and_no_file(number: signal.Signals, place: Path) -> None:
    command = [sys.executable, "-m", "coldstart.cli.main", "bench", "--only", "memory", "--mib", "32", "--rounds", "99"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any("memory: round 2" in line for line in process.stderr)
        assert len(running(place)) > 2  # the bench itself, its children, the store and its keeper
        process.send_signal(number)
        assert process.wait(20) != 0
    assert ended(place)
    if number is not signal.SIGKILL:  # nobody is left to remove them
        assert list(place.iterdir()) == []


@pytest.mark.processes
def test_a_child_that_fails_or_dies_is_one_line(place: Path) -> None:
    with bench_family.family(MIB, arenas=1, processes=1) as ours:
        child = ours.child("target")
        assert child.ask(Imports(), Done).peak > MIB
        with pytest.raises(ColdstartError, match="no checkpoint at /nowhere"):
            child.ask(Prepare("/nowhere"), Done)
        with pytest.raises(ColdstartError, match="the bench's target process ended: AssertionError"):
            child.ask(Plain(1), Done)
    assert list(place.iterdir()) == []


@pytest.mark.processes
def test_a_child_that_is_stuck_is_killed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_family, "ASK_SECONDS", 0.0)
    with (
        bench_family.family(MIB, arenas=1, processes=1) as ours,
        pytest.raises(ColdstartError, match="target process is stuck"),
    ):
        ours.child("target").ask(Imports(), Done)
    assert ended(place)


def test_statistics() -> None:
    few = figure("ms", [3.0, 1.0, 2.00004])
    assert (few.median, few.low, few.high, few.count, few.p90, few.p99) == (2.0, 1.0, 3.0, 3, None, None)
    many = figure("ms", [float(value) for value in range(1, 101)])
    assert (many.p90, many.p99) == (90.0, 99.0)
    assert ratio([1.0, 4.0, 9.0], [2.0, 4.0, 6.0]) == 1.0
    assert at_least("share", 0.7, 0.7).met
    assert not at_least("share", 0.69, 0.7).met
    assert at_most("time", 10.0, 10.0, "ms").met
    assert not at_most("time", 10.1, 10.0, "ms").met
