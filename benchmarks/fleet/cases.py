"""The cases of the shaped run: who is started, who is released at the signal, and until when it is timed.

Decides the order of things: all processes are started and held with their skeletons ready, then released
at once; a case is over when all of them serve. Processes are followed by the files that they write, and
ended whatever happens. What runs in them is in ``worker.py``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import anyio
import msgspec
import redis

from benchmarks.fleet.network import STORE, Network, inside
from benchmarks.fleet.results import Case, Start
from benchmarks.fleet.undisturbed import undisturbed
from benchmarks.fleet.worker import Task
from coldstart.bus.embedded import _binary
from coldstart.bus.redis import RedisBus
from coldstart.cli.worker import Asked
from coldstart.report import Report

READY_SECONDS = 120.0
"""Until a process has imported everything and built its skeleton, with as many others doing the same."""
SERVE_SECONDS = 180.0
END_SECONDS = 10.0
COUNTED = ("evalsha", "xread")
_LOOK = 0.02


class Line(msgspec.Struct, frozen=True):
    """One line that a worker has said; ``at`` is monotonic, equal for all processes of a machine."""

    event: str
    at: float = 0.0
    report: Report | None = None
    error: str = ""


class Failed(Exception):
    """A case came to no result; the message says why."""


class Store:
    """A Valkey that all workers reach, and this process by a socket."""

    def __init__(self, network: Network, place: Path) -> None:
        self.socket = place / "store.sock"
        self.url = f"redis://{STORE}:6379"
        options = ("--bind", STORE, "--port", "6379", "--protected-mode", "no", "--save", "", "--appendonly", "no")
        command = inside(network.store, str(_binary()), *options, "--unixsocket", str(self.socket))
        with (place / "store.log").open("wb") as log:
            self.process = subprocess.Popen(command, cwd=place, stdout=log, stderr=log, start_new_session=True)

    def ready(self) -> None:
        """Wait until it answers."""
        _until(self._answers, READY_SECONDS, "the store to answer", self.process)

    @property
    def version(self) -> str:
        with redis.Redis(unix_socket_path=str(self.socket)) as client:
            info = client.info("server")
        return f"{info.get('server_name', 'redis')} {info.get('valkey_version', info['redis_version'])}"

    def counts(self) -> Mapping[str, int]:
        """How often each counted command was called so far."""
        with redis.Redis(unix_socket_path=str(self.socket)) as client:
            stats = client.info("commandstats")
        return {name: stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in COUNTED}

    def advertised(self, namespace: str) -> Sequence[str]:
        """Workers with an advert."""
        return anyio.run(_advertised, f"unix://{self.socket}", namespace)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def _answers(self) -> bool:
        with suppress(redis.exceptions.ConnectionError), redis.Redis(unix_socket_path=str(self.socket)) as client:
            return bool(client.ping())
        return False


async def _advertised(url: str, namespace: str) -> Sequence[str]:
    bus = await RedisBus.open(url, namespace)
    try:
        return [advert.worker for key in await bus.shards() for advert in await bus.adverts(key) if advert.have]
    finally:
        await bus.aclose()


class Process:
    """One worker process, followed by what it writes into ``NAME.jsonl``."""

    def __init__(self, network: Network, number: int, task: Task, place: Path) -> None:
        self.name = task.asked.name
        asked, self._said = place / f"{self.name}.task", place / f"{self.name}.jsonl"
        asked.write_bytes(msgspec.json.encode(task))
        command = inside(network.worker(number), sys.executable, "-m", "benchmarks.fleet.worker", str(asked))
        with self._said.open("wb") as said, (place / f"{self.name}.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=said, stderr=log, start_new_session=True
            )

    def heard(self, event: str) -> Line | None:
        """The first line with this event; raises Failed if the worker has failed instead."""
        for raw in self._said.read_bytes().splitlines(keepends=True):
            line = msgspec.json.decode(raw, type=Line) if raw.endswith(b"\n") else Line("unfinished")
            if line.event == event:
                return line
            if line.event == "failed":
                raise Failed(f"{self.name}: {line.error}")
        return None

    def wait(self, event: str, seconds: float) -> Line:
        """Wait for a line with this event."""
        _until(lambda: self.heard(event) is not None, seconds, f"{self.name} to say {event!r}", self._process)
        line = self.heard(event)
        assert line is not None
        return line

    def release(self) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        pipe.write(b"\n")
        pipe.flush()

    def ask_to_end(self) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Wait until it has drained, or kill it."""
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()


class Rollouts:
    """Plays cases in one network, one after the other.

    Args:
        place: directory that keeps what all processes said.
        settings: of all workers, as ``COLDSTART_<FIELD>`` would be.
        storage: bytes per second of one storage read.
    """

    def __init__(
        self, network: Network, store: Store, checkpoint: Path, place: Path, settings: Mapping[str, str], storage: float
    ) -> None:
        self._network, self._store = network, store
        self._checkpoint, self._place = checkpoint, place
        self._settings, self._storage = settings, storage

    def play(self, name: str, *, workers: int, holders: int, predicted: float) -> Case:
        """Start ``holders`` first, then ``workers`` at one signal, and wait until all serve.

        Raises:
            Failed: somebody failed, ended, or took too long; its log is in the kept directory.
        """
        place = self._place / name.replace(" ", "-")
        place.mkdir()
        with self._processes(place, holders + workers) as processes:
            held, released = processes[:holders], processes[holders:]
            for process in processes:
                process.wait("held", READY_SECONDS)
            for process in held:
                process.release()
                process.wait("serving", SERVE_SECONDS)
            _until(lambda: len(self._store.advertised(place.name)) == holders, END_SECONDS, "the holders' adverts")
            before, began = self._store.counts(), time.monotonic()
            for process in released:
                process.release()
            lines = [process.wait("serving", SERVE_SECONDS) for process in released]
            after = self._store.counts()
        starts = []
        for process, line in zip(released, lines, strict=True):
            assert line.report is not None
            starts.append(Start(process.name, line.at - began, line.report))
        commands = {command: after[command] - before[command] for command in COUNTED}
        return Case(name, workers, holders, round(predicted, 3), tuple(starts), commands)

    @contextmanager
    def _processes(self, place: Path, count: int) -> Iterator[Sequence[Process]]:
        with ExitStack() as resources:
            processes: list[Process] = []
            for number in range(count):
                asked = Asked(str(self._checkpoint), "tensors", f"w{number}", json=True, verbose=1)
                settings = {**self._settings, "redis": self._store.url, "namespace": place.name}
                with undisturbed():
                    processes.append(Process(self._network, number, Task(asked, settings, self._storage), place))
                    resources.callback(processes[-1].close)
            try:
                yield processes
            finally:
                for process in processes:
                    process.ask_to_end()


def _until(
    found: Callable[[], bool], seconds: float, what: str, process: subprocess.Popen[bytes] | None = None
) -> None:
    """Wait for a condition; raises Failed at the deadline, or when the process that it hangs on has ended."""
    deadline = time.monotonic() + seconds
    while not found():
        if process is not None and process.poll() is not None:
            raise Failed(f"waited for {what}, but the process ended with {process.returncode}")
        if time.monotonic() > deadline:
            raise Failed(f"waited {seconds:g} s for {what}")
        time.sleep(_LOOK)


def kernel() -> str:
    return os.uname().release
