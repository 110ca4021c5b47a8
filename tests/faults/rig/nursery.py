"""Makes worker processes quickly: one process that has imported everything forks them.

A worker of its own interpreter costs two seconds of CPU, nearly all of it the import of torch; a
fork costs milliseconds and is a process like any other: it can be stopped, killed and left to die.
The nursery holds no threads and has computed nothing, so nothing is lost in a fork. It ends with
the test run, and its workers with it. What a worker does is decided in ``worker.py``.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_REAP_SECONDS = 0.02
_MESSAGE_BYTES = 64 * 1024
ENTRY_POINTS = """
[coldstart.transports]
relayed = rig.plugins:RELAYED
[coldstart.skeletons]
gated = rig.plugins:GATED
"""


class Nursery:
    """The test's side: asks for workers. ``close`` kills all that are left."""

    def __init__(self, place: Path) -> None:
        info = place / "rig-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rig\nVersion: 1\n")
        (info / "entry_points.txt").write_text(ENTRY_POINTS)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        paths = [str(place), str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rig.nursery", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**_clean(), "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
        theirs.close()

    def spawn(self, task: dict[str, object], stdin: int, stdout: int, stderr: int, status: int) -> int:
        """A new process that works on ``task``; its end is written to ``status`` as for ``os.waitpid``."""
        socket.send_fds(self._socket, [json.dumps(task).encode()], [stdin, stdout, stderr, status])
        answer = self._socket.recv(64)
        assert answer, "the nursery has ended"
        return int(answer)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(30)


def _clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("COLDSTART_", "OTEL_"))}


# -------------------------------------------------------------------------------- in the nursery


def serve(asked: int) -> None:
    """Fork a worker for each message, tell of each end, until the test run hangs up."""
    children: dict[int, int] = {}
    calls, poll = socket.socket(fileno=asked), select.poll()
    poll.register(calls, select.POLLIN)
    while True:
        if poll.poll(_REAP_SECONDS * 1000):
            message, given, _, _ = socket.recv_fds(calls, _MESSAGE_BYTES, 4)
            if not message:
                break
            *standard, status = given
            pid = os.fork()
            if pid == 0:
                calls.detach()  # nothing of the nursery may be closed in the worker's name
                _become_worker(json.loads(message), standard)
            for descriptor in standard:
                os.close(descriptor)
            children[pid] = status
            calls.send(str(pid).encode())
        _reap(children)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _reap(children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        told = children.pop(pid)
        with suppress(BrokenPipeError):  # nobody waits for it any more
            os.write(told, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(told)


def _become_worker(task: dict[str, object], standard: list[int]) -> NoReturn:
    """In the child: work, and end as the command line does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
    os.closerange(3, 4096)
    from coldstart.cli import ending
    from rig import worker

    try:
        ending.leave(worker.main(task))
    except SystemExit as ended:  # taking torch apart costs a second of CPU and shows nothing
        os._exit(int(ended.code or 0))


def _warm_up() -> None:
    """Import what a worker imports."""
    import coldstart.bus.embedded
    import coldstart.bus.redis
    import coldstart.cli.main
    import coldstart.cli.worker
    import coldstart.skeletons.assembly
    import coldstart.transports.tcp  # noqa: F401
    import rig.plugins
    import rig.worker  # noqa: F401


if __name__ == "__main__":
    _warm_up()
    serve(int(sys.argv[1]))
