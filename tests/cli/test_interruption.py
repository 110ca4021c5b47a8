"""Whatever signal ends a command, and whenever: no traceback, its exit code, and a terminal as it was before."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

pytestmark = pytest.mark.processes

SECONDS = 40.0
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
EARLY = """
import runpy, sys

class Impatient:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Impatient())
runpy.run_module("coldstart", run_name="__main__")
"""


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, coldstart: Any, *words: str, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coldstart", *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**coldstart.environment, **environment},
        )
        os.close(theirs)
        self.shown = ""

    def until(self, wanted: str) -> None:
        """Read what is shown; an empty text waits for the end."""
        deadline = time.monotonic() + SECONDS
        while not wanted or wanted not in self.shown:
            assert time.monotonic() < deadline, self.shown
            try:
                self.shown += os.read(self._ours, 65536).decode()
            except OSError:  # the other side is closed
                assert not wanted, self.shown
                break
        if not wanted:
            os.close(self._ours)
            self.process.wait(timeout=SECONDS)


@pytest.mark.parametrize(
    ("words", "drawn", "number"),
    [
        (("watch", "--every", "0.1"), "the store is lost", signal.SIGINT),
        (("watch", "--every", "0.1"), "the store is lost", signal.SIGTERM),
        (("bench", "--only", "tcp", "--mib", "16", "--rounds", "999"), "tcp: ", signal.SIGTERM),
        (("doctor",), "checking ", signal.SIGHUP),
    ],
)
def test_a_hidden_cursor_is_shown_again(coldstart: Any, words: tuple[str, ...], drawn: str, number: int) -> None:
    terminal = Terminal(coldstart, *words, TERM="xterm")
    terminal.until(drawn)
    terminal.process.send_signal(number)
    terminal.until("")
    assert terminal.shown.count(HIDE) == terminal.shown.count(SHOW) > 0, terminal.shown
    assert "Traceback" not in terminal.shown
    assert terminal.process.returncode == 128 + number


def test_a_terminal_that_cannot_redraw_is_shown_one_picture_after_the_other(coldstart: Any) -> None:
    terminal = Terminal(coldstart, "watch", "--every", "0.1", TERM="dumb")
    terminal.until("the store is lost, and waited for")
    terminal.process.send_signal(signal.SIGINT)
    terminal.until("")
    assert (terminal.process.returncode, "\x1b" in terminal.shown) == (130, False)


def test_ctrl_c_is_quiet_while_modules_are_imported(coldstart: Any) -> None:
    command = [sys.executable, "-c", EARLY]
    done = subprocess.run(command, env=coldstart.environment, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
