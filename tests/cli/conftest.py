"""The command line as its users meet it: another process, an environment of its own, real servers."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import anyio
import pytest
import torch
from anyio.from_thread import start_blocking_portal
from safetensors.torch import save_file

from coldstart.bus.embedded import embedded


class CommandLine:
    """Runs ``coldstart`` in another process, whose stdout and stderr are pipes."""

    def __init__(self, **environment: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("COLDSTART_", "OTEL_"))}
        self.environment = {**kept, "COLUMNS": "200", "COLDSTART_CONFIG": "none", **environment}

    def __call__(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(words),
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=40,
            check=False,
        )

    async def beside(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The same, while replicas of this process serve."""
        return await anyio.to_thread.run_sync(lambda: self(*words, **environment))

    def command(self, words: Sequence[str]) -> list[str]:
        """For a process of one's own."""
        return [sys.executable, "-m", "coldstart.cli.main", *words]


@pytest.fixture
def directory() -> Iterator[Path]:
    """Where an embedded server may live: a path short enough for a socket, not made yet."""
    with tempfile.TemporaryDirectory(prefix="cs") as parent:
        yield Path(parent) / "store"


@pytest.fixture
def coldstart(directory: Path) -> CommandLine:
    return CommandLine(COLDSTART_DIRECTORY=str(directory))


@pytest.fixture
def store(directory: Path) -> Iterator[str]:
    """The URL of a real Valkey that runs as long as the test."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(embedded(directory)) as url:
        yield url


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "weights.safetensors"
    save_file({"a": torch.arange(300_000, dtype=torch.float32), "b": torch.ones(7, 5)}, path)
    return path


@pytest.fixture
def refused() -> str:
    """A URL at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"redis://127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """A URL at which somebody takes connections and never says a word."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"redis://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def broken_plugin(tmp_path: Path) -> str:
    """A directory for PYTHONPATH in which a distribution brings a transport that does not import."""
    home = tmp_path / "site"
    info = home / "broken_transport-2.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-transport\nVersion: 2.5\n")
    (info / "entry_points.txt").write_text("[coldstart.transports]\nwarp = broken_transport:FACTORY\n")
    (home / "broken_transport.py").write_text("raise ImportError('libwarp.so.3: cannot open [shared] object file')\n")
    return str(home)


@pytest.fixture
def odd_skeleton(tmp_path: Path) -> str:
    """A directory for PYTHONPATH: a distribution with two builders, of a module with extra state and of one without."""
    home = tmp_path / "site"
    info = home / "odd_skeleton-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-skeleton\nVersion: 1.0\n")
    entries = "[coldstart.skeletons]\nodd = odd_skeleton:Factory\neven = odd_skeleton:Even\n"
    (info / "entry_points.txt").write_text(entries)
    (home / "odd_skeleton.py").write_text(_ODD_SKELETON)
    return str(home)


_ODD_SKELETON = """
import torch
from coldstart.ports import API, Availability
from coldstart.skeletons.module import ModuleSkeleton

class Odd(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 2)
        self.register_buffer("table", torch.arange(4), persistent=False)
        self.register_buffer("cache", torch.zeros(5), persistent=False)

    def get_extra_state(self):
        return {}

class Factory:
    api = API
    probe = staticmethod(lambda: Availability(True))
    open = staticmethod(lambda dtype="": ModuleSkeleton(Odd, name="odd", runtime=["cache"]))

class Even(Factory):
    open = staticmethod(lambda dtype="": ModuleSkeleton(lambda: torch.nn.Linear(3, 2), name="even"))
"""


@pytest.fixture
def one_line() -> Callable[[str], str]:
    """An error as it must be: one line, ours, without a traceback."""

    def check(stderr: str) -> str:
        assert "Traceback" not in stderr
        lines = stderr.splitlines()
        assert len(lines) == 1, stderr
        assert lines[0].startswith("coldstart: ")
        return lines[0]

    return check
