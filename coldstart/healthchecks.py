"""The three questions that whoever runs a worker asks it: does it live, is it ready, will it drain?

Decides what is answered to which path. It must not know a server or a wire format: ``asgi.py`` answers
in applications that have an HTTP server, ``health_port.py`` in workers that have none. What is told is
``health.py``'s.

Nothing here asks the store or a peer: a probe that did would take a whole fleet out of service with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Literal

import anyio
import msgspec

from coldstart.health import Health
from coldstart.replica import Replica

DrainRoute = Literal["off", "loopback"]

_ALLOWED = {"/healthz": "GET, HEAD", "/readyz": "GET, HEAD", "/drain": "POST"}


class Asked(msgspec.Struct, frozen=True):
    """One request. ``client`` is the address that it came from; empty for a unix socket.

    ``forwarded`` says that a proxy sent it on, so that ``client`` is not who asked.
    """

    method: str
    path: str
    client: str = ""
    forwarded: bool = False


class Answer(msgspec.Struct, frozen=True):
    """A status of HTTP, a body in JSON, and for a wrong method those that are right."""

    status: int
    body: bytes
    allow: str = ""


class HealthChecks:
    """Answers health checks for one replica, from before it exists until it has gone.

        checks = HealthChecks()
        async with coldstart.join("/models/llama", wait=False) as replica, checks.following(replica):
            ...

    * ``GET /healthz`` is 200 as long as the event loop turns, whatever the weights do.
    * ``GET /readyz`` is 200 while the replica serves, else 503; its body is a :class:`coldstart.health.Health`.
    * ``POST /drain``, off by default, is :meth:`drain`; it answers when nothing is lent any more.

    Args:
        drain: who may use ``/drain``: nobody (``off``), or what runs beside the worker (``loopback``), such as a
            ``preStop`` hook. Behind a proxy on the same host that hides who asks, everybody comes from there.
    """

    def __init__(self, *, drain: DrainRoute = "off") -> None:
        self._route = drain
        self._replica: Replica | None = None
        self._drained_at: float | None = None

    @contextmanager
    def following(self, replica: Replica) -> Iterator[None]:
        """Answer for ``replica`` inside the block; not ready before it, nor after it."""
        self._replica = replica
        try:
            yield
        finally:
            self._replica = None

    @property
    def health(self) -> Health:
        """How the replica stands; quick, for the loop that it runs on."""
        health = self._replica.health if self._replica is not None else Health()
        if self._drained_at is None:
            return health
        return msgspec.structs.replace(health, ready=False, draining=True)

    async def drain(self, grace: float = 0.0) -> None:
        """Take this worker out of service before its server stops to listen.

        At once it is not ready, and advertised no more. Returns when nobody reads its weights any more and
        ``grace`` seconds have passed since the first call: the time in which balancers that go by ``/readyz`` find
        out, and still send requests. May be called again, and at the same time.
        """
        if self._drained_at is None:
            self._drained_at = anyio.current_time()
        if self._replica is not None:
            await self._replica.drain()
        await anyio.sleep_until(self._drained_at + grace)

    def answer(self, asked: Asked) -> Answer | None:
        """What is answered at once; None where the answer is :meth:`drained`'s. Status 404: not a path of ours."""
        known = asked.path in _ALLOWED and (asked.path != "/drain" or self._route != "off")
        if not known:
            return _refusal(404, "no such health check")
        if asked.method not in _ALLOWED[asked.path]:
            return _refusal(405, f"{asked.path} takes {_ALLOWED[asked.path]}", _ALLOWED[asked.path])
        if asked.path == "/healthz":
            return Answer(200, b'{"alive":true}')
        if asked.path == "/readyz":
            health = self.health
            return Answer(200 if health.ready else 503, msgspec.json.encode(health))
        return None if _is_local(asked) else _refusal(403, "/drain is for this host only")

    async def drained(self) -> Answer:
        """Drain, and answer for it."""
        await self.drain()
        return Answer(200, msgspec.json.encode(self.health))


def _is_local(asked: Asked) -> bool:
    if asked.forwarded:
        return False
    try:
        address = ip_address(asked.client)
    except ValueError:
        return not asked.client
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _refusal(status: int, error: str, allow: str = "") -> Answer:
    return Answer(status, msgspec.json.encode({"error": error}), allow)
