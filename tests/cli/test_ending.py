"""A command ends, whatever its threads do."""

import subprocess
import sys

import pytest

LEAVE = "from coldstart.cli.ending import leave; import threading, time; "


@pytest.mark.processes
@pytest.mark.parametrize(
    "thread",
    [
        pytest.param("threading.Thread(target=threading.Event().wait).start()", id="stuck"),
        pytest.param("threading.Thread(target=lambda: time.sleep(0.3)).start()", id="with work to finish"),
        pytest.param("threading.Thread(target=threading.Event().wait, daemon=True).start()", id="a daemon"),
        pytest.param("pass", id="none"),
    ],
)
def test_a_command_ends_with_its_code(thread: str) -> None:
    code = f"{LEAVE}{thread}; print('said', end=''); leave(9)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (9, "said"), done.stderr
