"""simulate: the same outcome however it is spread, verdict and replay, refusals in one line, and nobody left behind."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import msgspec
import pytest
import typer
from msgspec.structs import replace
from rich.console import Console
from typer.testing import CliRunner

from coldstart.cli import output, simulate, simulate_child, simulate_jobs
from coldstart.cli.interruption import Interruption
from coldstart.cli.main import app
from coldstart.cli.simulate_results import Result
from coldstart.cli.simulate_words import Asked, Played, Task, faults_of, seeds_of, spelt
from coldstart.errors import ColdstartError, ConfigError
from coldstart.testing.simulator import Fault, Outcome, Scenario, Violation, troubled
from coldstart.testing.simulator import simulate as play

SMALL = Asked(workers=3)
BROKEN = (Violation("never hang", 1.5, "w0.1", "still in Waiting"), Violation("no lasting harm", 9.0, "w1.1", "gone"))


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """In the environment of every process that the test starts."""
    monkeypatch.setenv("SIMULATE_MARK", str(tmp_path))
    return f"SIMULATE_MARK={tmp_path}"


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "coldstart.cli.main", "simulate", *words]


def running(mark: str) -> list[int]:
    return list(_running(mark.encode(), b"coldstart.cli.simulate_child"))


def _running(mark: bytes, module: bytes) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                told = (entry / "environ").read_bytes().split(b"\0")
                if mark in told and module in (entry / "cmdline").read_bytes().split(b"\0"):
                    yield int(entry.name)


def until(done: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.02)
    return done()


def result_of(asked: Asked, seeds: range, capsys: pytest.CaptureFixture[str], **more: object) -> Result:
    simulate.run(asked, seeds, **{"jobs": 1, "journal": False, "json": True, **more})  # type: ignore[arg-type]
    return msgspec.json.decode(capsys.readouterr().out, type=Result)


# ------------------------------------------------------------------------------------- what is played


@pytest.mark.parametrize("asked", [SMALL, Asked(workers=3, faults=()), Asked(workers=3, faults=(Fault.CRASH,))])
def test_the_outcome_is_the_same_however_many_processes_play(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    alone, spread = (result_of(asked, range(7, 30), capsys, jobs=jobs) for jobs in (1, 3))
    without = {"cpu_seconds": 0.0, "cold_starts_per_cpu_second": 0.0}
    assert replace(alone, **without) == replace(spread, **without)
    assert alone.seeds == alone.asked_seeds == 23
    assert alone.cold_starts == sum(play(asked.scenario(), seed).cold_starts for seed in range(7, 30))
    assert alone.violations == 0
    assert set(alone.faults) == set(asked.faults)


def test_outcomes_come_in_the_order_of_seeds() -> None:
    with Interruption() as stop:
        found = list(simulate_jobs.plays(Task(SMALL, False), range(40), jobs=3, stop=stop))
    assert [played.outcome.seed for played in found] == list(range(40))
    assert all(played.cpu_seconds > 0 for played in found)


def test_the_usual_scenarios_are_the_simulators_own() -> None:
    assert Asked(workers=5, faults=()).scenario() == Scenario(workers=5)
    assert Asked(workers=5, faults=(Fault.ROT,)).scenario() == troubled(5, (Fault.ROT,))


def test_whatever_can_be_set_is_in_the_scenario_and_in_the_replay() -> None:
    asked = Asked(8, (), 3, 4, 2.0, 0.1, 2.0, 4, 9.0, 7).checked()
    scenario = asked.scenario()
    assert (scenario.chunks, scenario.chunk_bytes, scenario.spread) == (3, 4 << 20, 2.0)
    assert (scenario.storage, scenario.limits.floor) == (1e8, 1e8)
    assert scenario.transport.seconds(10**9, 1, _Middle()) == pytest.approx(0.5)
    assert (scenario.slots, scenario.limits.patience, scenario.strikes) == (4, 9.0, 7)
    assert asked.replay(5) == (
        "coldstart simulate --workers 8 --seeds 5 --faults none --chunks 3 --chunk-mib 4 --spread 2.0"
        " --storage-gbps 0.1 --link-gbps 2.0 --slots 4 --patience 9.0 --strikes 7 --journal"
    )


class _Middle(Random):
    def random(self) -> float:
        return 0.5


def test_the_replay_plays_the_same_run() -> None:
    asked = Asked(workers=3, faults=(Fault.CRASH, Fault.WIPE), slots=1)
    words = shlex.split(asked.replay(4))
    assert words[:2] == ["coldstart", "simulate"]
    done = CliRunner().invoke(app, [*words[1:], "--json"])
    assert done.exit_code == 0, done.output
    found = msgspec.json.decode(done.stdout, type=Result)
    expected = play(asked.scenario(), 4, journal=True)
    assert tuple(found.journal) == expected.journal
    assert found.cold_starts == expected.cold_starts


# --------------------------------------------------------------------------------------- what is shown


def test_the_verdict_ends_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    simulate.run(SMALL, range(3), jobs=1, journal=False, json=True)
    printed = capsys.readouterr()
    assert printed.out.endswith('"violations":0}\n')
    assert printed.out.count("\n") == 1
    assert printed.err == ""
    found = msgspec.json.decode(printed.out)
    assert {"cold_starts", "faults", "paths", "failures", "storage_reads", "events", "virtual_seconds"} <= set(found)
    assert found["cold_starts"] == sum(found["paths"].values()) - found["paths"].get("left", 0)


def test_people_see_the_sums_and_no_escapes_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    simulate.run(SMALL, range(3), jobs=1, journal=False, json=False)
    printed = capsys.readouterr()
    labels = [line[:16].strip() for line in printed.out.splitlines()]
    assert labels[:2] == ["seeds", "cold starts"]
    assert labels[-1] == "violations"
    assert "cold starts per CPU second" in printed.out
    assert printed.err == ""
    assert "\x1b" not in printed.out


def test_a_terminal_sees_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(output, "STDERR", Console(file=screen, force_terminal=True, width=120))
    simulate.run(SMALL, range(5), jobs=1, journal=False, json=True)
    assert "cold starts" in screen.getvalue()
    assert "5/5" in screen.getvalue()
    assert capsys.readouterr().out.startswith("{")


def test_a_journal_is_shown_before_the_sums(capsys: pytest.CaptureFixture[str]) -> None:
    simulate.run(Asked(workers=1, faults=()), range(1), jobs=1, journal=True, json=False)
    lines = capsys.readouterr().out.splitlines()
    assert "Idle -> Discovering" in lines[0]
    assert lines[-1].split() == ["violations", "0"]


# -------------------------------------------------------------------------------------- broken promises


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the seeds played, 1 breaks two promises."""

    def plays(task: Task, seeds: range, *, jobs: int, stop: Interruption) -> Iterator[Played]:
        for seed in seeds:
            outcome = play(task.asked.scenario(), seed)
            broken = replace(outcome, violations=BROKEN, journal=("    1.2000 w0.1   it waits",))
            yield Played(broken if seed == 1 else outcome, 0.5)

    monkeypatch.setattr(simulate_jobs, "plays", plays)


@pytest.mark.usefixtures("failing")
def test_a_broken_promise_is_an_exit_code_with_all_that_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught:
        simulate.run(SMALL, range(3), jobs=1, journal=False, json=False)
    assert caught.value.exit_code == simulate.BROKEN == 10
    lines = capsys.readouterr().out.splitlines()
    assert lines[:6] == [
        "seed 1: 2 violations",
        "  never hang: w0.1 at 1.5000 s: still in Waiting",
        "  no lasting harm: w1.1 at 9.0000 s: gone",
        "  what led to the first of them:",
        "        1.2000 w0.1   it waits",
        "  replay: coldstart simulate --workers 3 --seeds 1 --faults all --journal",
    ]
    assert lines[-1].split() == ["violations", "2"]


@pytest.mark.usefixtures("failing")
def test_broken_promises_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        simulate.run(SMALL, range(3), jobs=1, journal=False, json=True)
    printed = capsys.readouterr().out
    assert printed.endswith('"violations":2}\n')
    (failure,) = msgspec.json.decode(printed, type=Result).failures
    assert (failure.seed, tuple(failure.violations)) == (1, BROKEN)
    assert failure.replay == SMALL.replay(1)


def test_a_failed_run_brings_what_led_to_its_first_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(scenario: Scenario, seed: int, *, journal: bool = False) -> Outcome:
        return replace(play(scenario, seed, journal=journal), violations=BROKEN)

    monkeypatch.setattr(simulate_child, "simulate", broken)
    kept = simulate_child.play(SMALL.scenario(), 3, journal=False).outcome.journal
    whole = play(SMALL.scenario(), 3, journal=True).journal
    before = [line for line in whole if float(line.split()[0]) <= 1.5 and ("w0.1" in line or line.split()[1] == "*")]
    assert list(kept) == before[-simulate_child.LAST :] != []


def test_a_run_that_does_not_repeat_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    courses = iter(range(2))

    def fickle(scenario: Scenario, seed: int, *, journal: bool = False) -> Outcome:
        return replace(play(scenario, seed, journal=journal), trace_hash=f"{next(courses)}", violations=BROKEN)

    monkeypatch.setattr(simulate_child, "simulate", fickle)
    outcome = simulate_child.play(SMALL.scenario(), 3, journal=False).outcome
    assert [violation.promise for violation in outcome.violations][-1] == "same seed, same run"


def test_a_run_that_raises_is_a_violation_with_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(scenario: Scenario, seed: int, *, journal: bool = False) -> Outcome:
        raise KeyError("w9.1")

    monkeypatch.setattr(simulate_child, "simulate", bad)
    outcome = simulate_child.play(SMALL.scenario(), 3, journal=False).outcome
    assert [violation.what for violation in outcome.violations] == ["KeyError: 'w9.1'"]
    assert outcome.journal[0].startswith("Traceback")
    assert outcome.seed == 3


# ------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(("text", "seeds"), [("7", range(7, 8)), ("0..99", range(100)), (" 3..3 ", range(3, 4))])
def test_seeds_are_read(text: str, seeds: range) -> None:
    assert seeds_of(text) == seeds


@pytest.mark.parametrize("text", ["", "x", "-1", "1..", "..2", "1...3", "1..2..3", "1,2", "1.5", "٣", "9" * 19])
def test_what_names_no_seeds_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--seeds .* names no seeds; give one, such as 7, or a range, such as 0"):
        seeds_of(text)


def test_seeds_that_run_backwards_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--seeds '9..3' ends before it begins; give 3..9$"):
        seeds_of("9..3")


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("all", tuple(Fault)),
        ("none", ()),
        ("wipe", (Fault.WIPE,)),
        (" wipe, crash,wipe,", (Fault.CRASH, Fault.WIPE)),
        (",".join(Fault), tuple(Fault)),
    ],
)
def test_faults_are_read_and_spelt(text: str, faults: tuple[Fault, ...]) -> None:
    assert faults_of(text) == faults
    assert faults_of(spelt(faults)) == faults


@pytest.mark.parametrize("text", ["", ",", "crsh", "crash,none", "all,none", "CRASH"])
def test_what_is_no_fault_is_refused_with_all_that_are(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--faults .*; give all, none, or some of crash,drain,"):
        faults_of(text)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--workers", "0"], "--workers is 0; use 1 to 100000"),
        (["--slots", "0"], "--slots is 0; use 1 to 1024"),
        (["--spread", "nan"], "--spread is nan; use 0 to 86400"),
        (["--jobs", "0"], "--jobs is 0; use 1 to 1024"),
        (["--seeds", "3..4", "--journal"], "--journal shows one seed; give one, such as --seeds 3"),
        (["--link-gbps", "0.1"], "a chunk takes 5.91 s with all slots taken, and a transfer may stand still"),
        (["--storage-gbps", "20", "--chunks", "20"], "the model takes 11.5 s longer than from storage"),
        (["--storage-gbps", "0.01"], "storage takes 161 s, and its reader is waited for 60 s only"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(words: Sequence[str], what: str) -> None:
    done = CliRunner().invoke(app, ["simulate", *words])
    assert isinstance(done.exception, ConfigError)
    assert what in str(done.exception)
    assert "\n" not in str(done.exception)
    assert done.stdout == ""


# ------------------------------------------------------------------------------------------ processes


@pytest.mark.processes
def test_it_needs_no_development_dependency(tmp_path: Path) -> None:
    """And neither its children nor it touch torch or redis, which take seconds."""
    for name in ("pytest", "hypothesis", "torch", "redis"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is not for the simulator')\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        command("--workers", "3", "--seeds", "0..3", "--json"),
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert msgspec.json.decode(done.stdout, type=Result).seeds == 4


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_processes_and_shows_what_was_done(number: signal.Signals, mark: str) -> None:
    with subprocess.Popen(
        command("--workers", "3", "--seeds", "0..999999999", "--jobs", "2", "--json"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert until(lambda: len(running(mark)) == 2)
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (128 + number, "")
    found = msgspec.json.decode(out, type=Result)
    assert found.ended_early == number.name
    assert found.seeds < found.asked_seeds == 1_000_000_000
    assert running(mark) == []


@pytest.mark.processes
def test_killed_it_leaves_no_process_for_long(mark: str) -> None:
    words = command("--workers", "3", "--seeds", "0..999999999", "--jobs", "2")
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
        assert until(lambda: len(running(mark)) == 2)
        process.kill()
    assert until(lambda: running(mark) == [])


@pytest.mark.processes
def test_a_signal_keeps_what_was_played(mark: str) -> None:
    with (
        Interruption() as stop,
        closing(simulate_jobs.plays(Task(SMALL, False), range(10**9), jobs=2, stop=stop)) as plays,
    ):
        first = [next(plays).outcome.seed for _ in range(10)]
        os.kill(os.getpid(), signal.SIGINT)
        rest = [played.outcome.seed for played in plays]  # what had come before its turn
        assert stop.name == "SIGINT"
    assert first == list(range(10))
    assert rest == sorted(set(rest))
    assert len(rest) <= 2 * simulate_jobs.AHEAD * 2
    assert running(mark) == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.processes
def test_a_process_that_dies_is_told_of_and_what_was_played_is_shown(
    mark: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = simulate_jobs.plays

    def plays(task: Task, seeds: range, *, jobs: int, stop: Interruption) -> Iterator[Played]:
        for played in real(task, seeds, jobs=jobs, stop=stop):
            yield played
            if played.outcome.seed == 5:
                for pid in running(mark):
                    os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(simulate_jobs, "plays", plays)
    with pytest.raises(ColdstartError, match=r"^the process that played seed \d+ ended with status -9; if it was"):
        simulate.run(SMALL, range(10**6), jobs=2, journal=False, json=True)
    found = msgspec.json.decode(capsys.readouterr().out, type=Result)
    assert found.seeds >= 6
    assert re.match(r"the process that played seed \d+ ended", str(found.ended_early))
    assert running(mark) == []


def test_a_signal_that_was_ignored_stays_so() -> None:
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.number == 0
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.name == "SIGTERM"
    finally:
        signal.signal(signal.SIGHUP, former)
