"""Checks of this machine's place in the network: the address peers are told, and the traces' endpoint.

Decides whether peers could reach what this worker would advertise. Connects to the endpoint of traces
and says nothing to it.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import socket
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

import anyio

from coldstart import config
from coldstart.cli.checks.check import Check, fail, ok, warn
from coldstart.config import Settings
from coldstart.ports import Bus

CONNECT_SECONDS = 1.0
LOOPBACK = "127.0.0.1"

_CHOOSE = "set COLDSTART_HOST to an address of this machine that peers can reach"
_PORTS = {"grpc": 4317}


def advertised(settings: Settings, bus: Bus | None) -> str:
    """The address that a worker with these settings tells its peers."""
    return settings.host or (bus.local_address if bus is not None else LOOPBACK)


async def address(settings: Settings, bus: Bus | None) -> Sequence[Check]:
    """Whether a free port can be bound on the advertised address, and who can reach it."""
    host = advertised(settings, bus)
    try:
        found = (await anyio.getaddrinfo(host, 0, type=socket.SOCK_STREAM))[0]
        with socket.socket(found[0], socket.SOCK_STREAM) as probe:
            probe.bind(found[4])
            probe.listen()
            port = probe.getsockname()[1]
    except OSError as error:
        return [fail("address", f"nothing can listen on {host}: {error.strerror or error}", _CHOOSE)]
    finding = f"a port is free on {host} (say {port})"
    number = _ip(str(found[4][0]))
    if number is None or number.is_unspecified:
        return [fail("address", f"{host} says nothing to peers", _CHOOSE)]
    if not number.is_loopback:
        return [ok("address", finding)]
    finding += ", which only this machine can reach"
    if bus is not None and not _is_loopback(bus.local_address):
        return [warn("address", f"{finding}; the store is on another machine", _CHOOSE)]
    shared = settings.redis and not settings.redis.startswith("unix:")
    return [ok("address", finding, f"if workers elsewhere use this store, {_CHOOSE}" if shared else "")]


async def traces() -> Sequence[Check]:
    """Whether traces can be exported, if an endpoint is set."""
    endpoint = config.otlp_endpoint()
    if not endpoint:
        return [ok("traces", "not exported; OTEL_EXPORTER_OTLP_ENDPOINT is not set")]
    if not _has_sdk():
        advice = "pip install 'coldstart-weights[otel]', or unset OTEL_EXPORTER_OTLP_ENDPOINT"
        return [fail("traces", "an endpoint is set and OpenTelemetry's SDK is not installed", advice)]
    try:
        parts = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
        host, port = parts.hostname or "", parts.port or _default_port(parts.scheme)
    except ValueError:
        host, port = "", 0
    if not host:
        return [fail("traces", "OTEL_EXPORTER_OTLP_ENDPOINT names no host", "write http://HOST:4318")]
    with suppress(OSError), anyio.move_on_after(CONNECT_SECONDS):
        async with await anyio.connect_tcp(host, port):
            return [ok("traces", f"{host}:{port} accepts connections")]
    advice = "start the collector or correct OTEL_EXPORTER_OTLP_ENDPOINT; workers run all the same"
    return [warn("traces", f"nothing accepts connections at {host}:{port}", advice)]


def _default_port(scheme: str) -> int:
    if scheme in ("http", "https") and config.otlp_protocol() != "grpc":
        return 443 if scheme == "https" else 80
    return _PORTS.get(config.otlp_protocol(), 4318)


def _has_sdk() -> bool:
    with suppress(ImportError):
        return importlib.util.find_spec("opentelemetry.sdk") is not None
    return False


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.ip_address(text.partition("%")[0])
    return None


def _is_loopback(text: str) -> bool:
    number = _ip(text)
    return number is not None and number.is_loopback
