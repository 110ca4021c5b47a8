"""The processes and files of one ``coldstart bench``, and that none of them is left behind.

Decides how children are started, asked with a deadline and ended, and where the checkpoint they
work on lies. Whatever way the bench ends (Ctrl-C and SIGTERM included), children are killed and
the directory is removed; should the bench itself be killed, its children end by themselves. It
must not know what is measured.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from coldstart.bus import keeper
from coldstart.cli.bench_room import need_room, write_checkpoint
from coldstart.cli.bench_words import Failed, Reply, Request
from coldstart.cli.interruption import terminations_unwind
from coldstart.errors import ColdstartError

ASK_SECONDS = 60.0
"""What any request may take, beside a time for its bytes."""
SLOWEST = 50e6
"""Bytes per second below which a copy counts as stuck."""
_END_SECONDS = 8.0

R = TypeVar("R", bound=Reply)


class Child:
    """One process that fulfils requests; see ``bench_child.py``."""

    def __init__(self, name: str, directory: Path) -> None:
        self._name = name
        self._log = directory / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "coldstart.cli.bench_child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the parent, which then ends its children
            )
        self._unread = b""

    def ask(self, request: Request, kind: type[R], nbytes: int = 0) -> R:
        """The reply to ``request``, which moves ``nbytes``.

        Raises:
            ColdstartError: the child could not do it, died, or took too long.
        """
        pipe = self._process.stdin
        assert pipe is not None
        with suppress(BrokenPipeError):  # it has died: reading says so
            pipe.write(msgspec.json.encode(request) + b"\n")
            pipe.flush()
        line = self._line(time.monotonic() + ASK_SECONDS + nbytes / SLOWEST)
        reply: Reply = msgspec.json.decode(line, type=Reply)
        if isinstance(reply, Failed):
            raise ColdstartError(reply.what)
        assert isinstance(reply, kind)
        return reply

    def _line(self, until: float) -> bytes:
        pipe = self._process.stdout
        assert pipe is not None
        while b"\n" not in self._unread:
            ready, _, _ = select.select([pipe], [], [], max(until - time.monotonic(), 0))
            if not ready:
                raise ColdstartError(f"the bench's {self._name} process is stuck", advice="try a smaller --mib")
            data = os.read(pipe.fileno(), 65536)
            if not data:
                raise ColdstartError(f"the bench's {self._name} process ended: {self._last_words()}")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _last_words(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip()[:400] if lines else f"status {self._process.wait(1)}, most likely killed for memory"

    def end(self) -> None:
        """Kill the process; it holds nothing worth finishing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


class Family:
    """The children of one part of the bench, their checkpoint of ``nbytes`` and their store."""

    def __init__(self, directory: Path, nbytes: int, resources: ExitStack) -> None:
        self._directory, self._resources = directory, resources
        self.nbytes = nbytes
        self.checkpoint = write_checkpoint(directory / "checkpoint", nbytes)

    @property
    def place(self) -> str:
        """Where the embedded store of this bench lives."""
        return str(self._directory)

    def child(self, name: str) -> Child:
        """A process that lasts as long as the family."""
        child = Child(name, self._directory)
        self._resources.callback(child.end)
        return child

    @contextmanager
    def passing(self, name: str) -> Iterator[Child]:
        """A process that lasts as long as the block."""
        child = Child(name, self._directory)
        try:
            yield child
        finally:
            child.end()


@contextmanager
def family(nbytes: int, *, arenas: int, processes: int) -> Iterator[Family]:
    """A checkpoint of ``nbytes`` in a directory of its own, and children that work on it.

    Args:
        arenas, processes: how many memories of that size, and processes, there will be at one time.

    Raises:
        ConfigError: not enough room on the disk or in memory.
    """
    need_room(Path(tempfile.gettempdir()), nbytes, arenas=arenas, processes=processes)
    with terminations_unwind(), ExitStack() as resources:
        directory = Path(tempfile.mkdtemp(prefix="coldstart-bench-"))
        resources.callback(_remove, directory)
        yield Family(directory, nbytes, resources)


def _remove(directory: Path) -> None:
    """Remove the directory, once the store in it has been ended by its keeper."""
    until = time.monotonic() + _END_SECONDS
    while _is_kept(directory / "store" / keeper.KEEPER_LOCK) and time.monotonic() < until:
        time.sleep(0.01)
    while directory.exists() and time.monotonic() < until:
        shutil.rmtree(directory, ignore_errors=True)


def _is_kept(lock: Path) -> bool:
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
