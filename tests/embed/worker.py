"""One example as a process: started as its first lines say, asked for its health, told to end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from coldstart.health import Health
from tests.embed.asking import ask_http
from tests.embed.balancer import Place

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SECONDS = 120.0
"""For anything that a worker does; a machine may be busy."""


class Worker:
    """A running example; its output is kept for when something goes wrong."""

    def __init__(self, example: str, checkpoint: Path, place: Place, log: Path, environment: Mapping[str, str]) -> None:
        self.place = place
        self.began = anyio.current_time()
        self._log = log
        ports = [place.port] if place.port == place.health else [place.port, place.health]
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(EXAMPLES / example), str(checkpoint), *map(str, ports)],
                stdout=output,
                stderr=output,
                env={**_clean(), "COLDSTART_CACHE": "none", "OMP_NUM_THREADS": "1", **environment},
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    async def health(self) -> tuple[int, Health] | None:
        """Status and body of /readyz; None where nobody answers."""
        try:
            answered = await ask_http(self.place.health, "GET", "/readyz")
        except OSError:
            return None
        return answered.status, msgspec.json.decode(answered.body, type=Health)

    async def alive(self) -> bool:
        return (await ask_http(self.place.health, "GET", "/healthz")).status == 200

    async def ready(self) -> Health:
        """Wait until it is."""
        with anyio.fail_after(SECONDS):
            while True:
                assert self._process.poll() is None, f"ended with {self._process.returncode}: {self.log}"
                told = await self.health()
                if told is not None and told[0] == 200:
                    return told[1]
                await anyio.sleep(0.05)

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    async def ended(self) -> int:
        """Wait for its end; returns the exit code, negative for a signal."""
        return await anyio.to_thread.run_sync(self._process.wait, SECONDS)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def free_places(count: int, *, apart: bool) -> list[Place]:
    """Ports that nobody has; ``apart``: health checks have one of their own."""
    ports = _free_ports(2 * count if apart else count)
    return [Place(ports[index], ports[-1 - index] if apart else ports[index]) for index in range(count)]


def free_port() -> int:
    return _free_ports(1)[0]


def _free_ports(count: int) -> list[int]:
    """All held until all are chosen, so that they differ."""
    held = [socket.socket() for _ in range(count)]
    try:
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in held]
    finally:
        for each in held:
            each.close()


def _clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("COLDSTART_", "OTEL_"))}
