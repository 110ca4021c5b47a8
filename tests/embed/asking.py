"""Asks workers: an HTTP request or a line of JSON, on a connection of its own each, as strangers would."""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.client import HTTPException, HTTPResponse
from typing import NamedTuple, cast

import anyio
import msgspec

SECONDS = 15.0
"""A request that has not been answered after so long is lost."""


class Answered(NamedTuple):
    """Status of HTTP and body."""

    status: int
    body: bytes


@asynccontextmanager
async def _connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    with anyio.fail_after(SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield reader, writer
        finally:
            writer.close()


def request(method: str, path: str, body: bytes = b"", *fields: str) -> bytes:
    """A request, after which the connection is closed."""
    head = (
        f"{method} {path} HTTP/1.1",
        "host: worker",
        "connection: close",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *fields,
    )
    return "\r\n".join((*head, "", "")).encode() + body


class _Received(NamedTuple):
    """What ``http.client`` takes for a socket."""

    response: bytes

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self.response)


def parsed(response: bytes, method: str = "GET") -> Answered:
    """What came back; a connection that ended before its answer did is an error."""
    found = HTTPResponse(cast(socket.socket, _Received(response)), method=method)
    try:
        found.begin()
        return Answered(found.status, found.read())
    except HTTPException as error:
        raise ConnectionError(f"no whole answer, but {response!r:.80}: {error!r}") from error


async def ask_http(port: int, method: str, path: str, body: bytes = b"", *fields: str) -> Answered:
    """One request."""
    async with _connected(port) as (reader, writer):
        writer.write(request(method, path, body, *fields))
        return parsed(await reader.read(), method)


async def ask_line(port: int, line: bytes) -> bytes:
    """One line, answered with a line."""
    async with _connected(port) as (reader, writer):
        writer.write(line + b"\n")
        answer = await reader.readline()
        if not answer.endswith(b"\n"):
            raise ConnectionError(f"no answer, but {answer!r:.80}")
        return answer


async def numbers_of_http(port: int, inputs: list[float]) -> list[float]:
    """What a worker with HTTP makes of ``inputs``."""
    answered = await ask_http(port, "POST", "/predict", msgspec.json.encode(inputs))
    if answered.status != 200:
        raise ConnectionError(f"status {answered.status}: {answered.body!r:.120}")
    return msgspec.json.decode(answered.body, type=list[float])


async def numbers_of_line(port: int, inputs: list[float]) -> list[float]:
    """What a worker with lines makes of ``inputs``."""
    return msgspec.json.decode(await ask_line(port, msgspec.json.encode(inputs)), type=list[float])
