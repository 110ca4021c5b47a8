"""Checks of what this user may do: in the store, by its ACL; in the cache directory; at the port of metrics.

Decides what a worker must be allowed. Each operation of the store is really done, on a shard of the doctor's own, so
that an ACL which lacks one command or key pattern is found before a worker meets it. It must not know Redis.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from coldstart.cli.checks.check import Check, fail, ok, warn
from coldstart.config import Settings
from coldstart.errors import BusError
from coldstart.group import Paper
from coldstart.ports import Advert, Bus, Cursor

_SHARD = "doctor"
_ACL = "a worker's user needs EVAL, EVALSHA, XREAD and what the scripts call, on the namespace's keys"


async def store(bus: Bus) -> Sequence[Check]:
    """Do once what a worker does."""
    refused: list[str] = []
    first: BusError | None = None
    for name, operation in _OPERATIONS.items():
        try:
            await operation(bus)
        except BusError as error:
            refused.append(name)
            first = first or error
    if first is None:
        return [ok("permissions", f"this user of the store may do what a worker does: {', '.join(_OPERATIONS)}")]
    advice = first.advice or _ACL
    return [fail("permissions", f"the store refuses {', '.join(refused)}: {first.what}", f"{advice}; {_ACL}")]


async def _adverts(bus: Bus) -> None:
    name = f"doctor-{secrets.token_hex(4)}"
    advert = Advert(name, f"{name}.1", "1", 1, _SHARD, 1, 0, 1, (), "", "cpu")
    await bus.advertise(_SHARD, advert, 1.0)
    await bus.adverts(_SHARD)
    await bus.withdraw(_SHARD, name, "1")
    await bus.shards()


async def _letters(bus: Bus) -> None:
    inbox = f"doctor-{secrets.token_hex(8)}"
    await bus.send(_SHARD, inbox, b"", secrets.token_hex(8))
    await bus.listen(_SHARD, inbox, Cursor(), 0.1, fleet=False)


async def _truths(bus: Bus) -> None:
    await bus.fetch_truth(_SHARD, _SHARD)
    await bus.stated(_SHARD, _SHARD)


async def _leading(bus: Bus) -> None:
    await bus.lead(_SHARD, _SHARD, "doctor", 0.5)
    await bus.lead(_SHARD, _SHARD, "doctor", 0)


async def _journal(bus: Bus) -> None:
    await bus.recorded(_SHARD)
    await bus.journals()


async def _votes(bus: Bus) -> None:
    name = f"doctor-{secrets.token_hex(4)}"
    await bus.vote(name, Paper(name, "1", 1, 1.0))


_OPERATIONS: dict[str, Callable[[Bus], Awaitable[None]]] = {
    "adverts": _adverts,
    "letters": _letters,
    "truths": _truths,
    "the lease of who reads storage": _leading,
    "the journal": _journal,
    "votes of groups": _votes,
}


def cache(settings: Settings) -> Sequence[Check]:
    """Whether rates of links can be kept; nothing is made here."""
    directory = settings.links_directory
    if directory is None:
        return [ok("cache", "rates of links are kept nowhere: links are not probed, no wait is estimated")]
    # Path.exists raises for what may not be seen
    there = next(each for each in (directory, *directory.parents) if os.path.exists(each))
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return [ok("cache", f"rates of links are kept in {directory}")]
    advice = f"make {there} writable, or set COLDSTART_CACHE to another directory, or to none"
    return [warn("cache", f"rates of links cannot be kept in {directory}: no leave to write in {there}", advice)]


def metrics(settings: Settings) -> Sequence[Check]:
    """Whether a worker with these settings could show its metrics; one that does has the port already."""
    host, port = settings.metrics_host, settings.metrics_port
    if not port:
        return [ok("metrics", "not shown to Prometheus; COLDSTART_METRICS_PORT is not set")]
    found = None
    with suppress(ImportError):
        found = importlib.util.find_spec("opentelemetry.exporter.prometheus")
    if found is None:
        advice = "pip install 'coldstart-weights[otel]', or unset COLDSTART_METRICS_PORT"
        return [fail("metrics", "a port is set and OpenTelemetry's Prometheus exporter is not installed", advice)]
    try:
        with socket.create_server((host, port)):
            return [ok("metrics", f"port {port} is free on {host}")]
    except OSError as error:
        advice = "fine if a worker has it; each worker of a host needs a port of its own"
        return [warn("metrics", f"port {port} cannot be had on {host}: {error.strerror or error}", advice)]
