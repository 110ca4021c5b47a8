"""Health checks for workers that have no HTTP server: a port of their own.

Decides how much of HTTP/1.1 a prober needs: a request without a body, an answer, the end of the
connection. It must not know what is answered; that is ``healthchecks.py``'s. A worker with an HTTP
server uses ``asgi.py``.
"""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus

from coldstart.errors import ConfigError
from coldstart.healthchecks import Answer, Asked, HealthChecks

SECONDS = 5.0
"""A prober that has not sent its request after so long, or not taken the answer, is left."""
HEAD_BYTES = 8192
"""A longer head is no prober's."""
_FORWARDED = (b"\nforwarded:", b"\nx-forwarded-for:", b"\nx-real-ip:")


@asynccontextmanager
async def listening(checks: HealthChecks, port: int, host: str = "0.0.0.0") -> AsyncIterator[int]:
    """Answer ``checks`` on ``port`` inside the block; gives the port, which ``0`` leaves to the system.

    Raises:
        ConfigError: nobody can listen there.
    """
    try:
        server = await asyncio.start_server(partial(_serve, checks), host, port, limit=HEAD_BYTES)
    except OSError as error:
        raise ConfigError(f"no health checks on {host}:{port}: {error}", advice="choose another port") from error
    async with server:
        yield int(server.sockets[0].getsockname()[1])


async def _serve(checks: HealthChecks, reader: StreamReader, writer: StreamWriter) -> None:
    """One connection: one request. A drain takes its own time."""
    try:
        with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, TimeoutError):
            async with asyncio.timeout(SECONDS):
                asked = _asked(await reader.readuntil(b"\r\n\r\n"), writer)
            if asked is None:
                return
            answer = checks.answer(asked)
            _write(writer, asked, answer if answer is not None else await checks.drained())
            async with asyncio.timeout(SECONDS):
                await writer.drain()
    finally:
        writer.close()


def _asked(head: bytes, writer: StreamWriter) -> Asked | None:
    """The question, or None for what is no HTTP."""
    line, _, fields = head.partition(b"\r\n")
    method, _, rest = line.decode("latin-1").partition(" ")
    target, _, version = rest.partition(" ")
    if not version.startswith("HTTP/1."):
        return None
    forwarded = any(name in b"\n" + fields.lower() for name in _FORWARDED)
    peer = writer.get_extra_info("peername")
    return Asked(method, target.partition("?")[0], str(peer[0]) if peer else "", forwarded)


def _write(writer: StreamWriter, asked: Asked, answer: Answer) -> None:
    fields = [
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
        "content-type: application/json",
        f"content-length: {len(answer.body)}",
        "cache-control: no-store",
        "connection: close",
        *([f"allow: {answer.allow}"] if answer.allow else []),
    ]
    writer.write("\r\n".join((*fields, "", "")).encode() + (b"" if asked.method == "HEAD" else answer.body))
