"""Output that nobody takes, or that has no room, and text that is not what it looks like."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from coldstart.cli import output

LOST = "output is lost: No space left on device\n"
processes = pytest.mark.processes


def into(sink: str, coldstart: Any, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command with ``sink`` appended to it in a shell, where ``$?`` is the command's own."""
    line = f'set -o pipefail; "$@" {sink}'
    return subprocess.run(
        ["bash", "-c", line, "bash", sys.executable, "-m", "coldstart.cli.main", *words],
        env=coldstart.environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@processes
@pytest.mark.parametrize("words", [("peers",), ("peers", "--json"), ("--help",)])
@pytest.mark.parametrize("sink", ["| true", ">&-", ">&- 2>&-", "<&- >&- 2>&-", "> /dev/full 2>&-"])
def test_a_reader_that_left_and_a_closed_stream_are_nobodys_fault(
    coldstart: Any, words: tuple[str, ...], sink: str
) -> None:
    done = into(sink, coldstart, *words)
    full = "full" in sink and words != ("--help",)
    assert (done.returncode, done.stdout, done.stderr) == (int(full), "", "")


@processes
@pytest.mark.parametrize("words", [("plugins",), ("plugins", "--json"), ("peers",), ("doctor",)])
def test_a_full_disk_is_said_once_and_fails_a_command_whose_result_is_lost(
    coldstart: Any, words: tuple[str, ...]
) -> None:
    done = into("> /dev/full", coldstart, *words)
    assert (done.returncode, done.stderr) == (1, LOST)


@processes
def test_an_error_that_nobody_can_read_keeps_its_exit_code(coldstart: Any) -> None:
    for sink in ("2>&-", "2> /dev/full", "> /dev/full 2>&1"):
        done = into(sink, coldstart, "worker", "--checkpoint", "/nothing/here")
        assert (done.returncode, done.stdout, done.stderr) == (3, "", ""), sink


@processes
def test_an_error_is_one_line_whatever_is_in_it(coldstart: Any) -> None:
    done = coldstart("worker", "--checkpoint", "/no\nthing\x1b[31m")
    assert done.returncode == 3
    assert done.stderr.startswith("coldstart: no checkpoint at /no\\nthing\\x1b[31m: ")
    assert done.stderr.count("\n") == 1


@processes
def test_a_terminal_that_does_not_know_its_width_still_shows_something(coldstart: Any) -> None:
    env = {**coldstart.environment, "COLUMNS": "0"}
    command = [sys.executable, "-m", "coldstart", "plugins"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=50, check=False)
    assert "tcp" in done.stdout


@processes
@pytest.mark.parametrize("only", [",", "", " , "])
def test_a_bench_of_nothing_is_refused(coldstart: Any, only: str) -> None:
    done = coldstart("bench", "--only", only)
    assert (done.returncode, done.stdout) == (2, "")
    assert "names no part" in done.stderr
    assert done.stderr.count("\n") == 1


class _Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_stream_falls_silent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr(sys, "stdout", _Full())
    output.guard()
    assert not output.is_lost()
    for _ in range(3):
        output.say("hello")
        output.emit([1])
    assert output.is_lost()
    assert said.getvalue() == LOST


def test_a_stream_that_is_closed_under_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    shut = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shut)
    output.guard()
    shut.close()
    output.say("hello")
    assert not sys.stdout.isatty()
    assert not output.is_lost()


def test_what_the_encoding_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(taken, encoding="ascii"))
    output.guard()
    output.say("caf\xe9")
    output.emit(["\udcff"])
    assert taken.getvalue() == b'caf\\xe9\n["\\udcff"]\n'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a worker, 3.5 GB/s: fine", "a worker, 3.5 GB/s: fine"),
        ("gr\xfc\xdfe \u4e16", "gr\xfc\xdfe \u4e16"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x1b[31mred\x07\x9b", "\\x1b[31mred\\x07\\x9b"),
        ("\u202eright to left\u2028", "\\u202eright to left\\u2028"),
        ("\udcff", "\\udcff"),
        (":smile: [red]x[/]", ":smile: [red]x[/]"),
    ],
)
def test_text_stays_on_its_line_and_has_no_colour_of_its_own(
    capsys: pytest.CaptureFixture[str], text: str, shown: str
) -> None:
    output.say(text)
    output.note(text)
    output.table("", ("column",), [(text,)])
    out, err = capsys.readouterr()
    assert (out, err) == (f"{shown}\ncolumn\n{shown}\n", f"{shown}\n")
    for printed in (out, err):
        assert "\x1b" not in printed


@pytest.mark.parametrize(("width", "drawn"), [(34, False), (35, True), (200, True)])
def test_a_table_is_drawn_only_where_it_fits(monkeypatch: pytest.MonkeyPatch, width: int, drawn: bool) -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, color_system=None, width=width, soft_wrap=True)
    monkeypatch.setattr(output, "STDOUT", console)
    output.table("", ("name", "bytes>", "where"), [("worker-one", "12", "over there"), ("w", "4096", "\u4e16\u754c")])
    lines = shown.getvalue().splitlines()
    if drawn:
        assert {len(line) for line in lines if "\u4e16" not in line} == {35}
    else:
        assert lines == ["name        bytes  where", "worker-one     12  over there", "w            4096  \u4e16\u754c"]


def test_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit({"name": "a\nb"})
    assert json.loads(capsys.readouterr().out) == {"name": "a\nb"}
