"""What tests of transfers share: grants, what has landed, what memory holds, what a process has open.

Decides nothing about transports; the suites that use it are in ``transport_contract.py`` and
``late_writes.py``. Sizes are in bytes.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import anyio

from coldstart.layout import Layout, Span
from coldstart.ports import Grant, Memory

MIB = 1024 * 1024


def grant(transfer: str, seconds: float = 60.0) -> Grant:
    return Grant(transfer=transfer, joiner="joiner", fence=1, seconds=seconds)


def whole(layout: Layout) -> Span:
    return Span(0, layout.nbytes)


class Landings:
    """A ``landed`` callback that remembers, and wakes a waiter at the first span."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def __call__(self, span: Span) -> None:
        self.spans.append(span)  # atomic; called from any thread

    async def first(self) -> None:
        await eventually(lambda: bool(self.spans))


async def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Poll ``condition`` until it holds."""
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in threads and other processes
            await anyio.sleep(0.002)


class Content:
    """Bytes to compare, which are told in a line: pytest can take minutes to explain how megabytes differ."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __eq__(self, other: object) -> bool:
        return self._data == (other._data if isinstance(other, Content) else other)

    def __hash__(self) -> int:
        return hash(self._data)

    def __contains__(self, part: bytes) -> bool:
        return part in self._data

    def __repr__(self) -> str:
        return f"<{len(self._data)} bytes, sha256 {hashlib.sha256(self._data).hexdigest()[:12]}>"


def payload(memory: Memory, layout: Layout) -> Content:
    """All bytes of weights, without padding."""
    return pieces_of(memory, whole(layout))


def pieces_of(memory: Memory, span: Span) -> Content:
    """The bytes of weights in ``span``."""
    return Content(
        b"".join(_content(memory, Span(piece.offset, piece.length)) for piece in memory.layout.pieces(span))
    )


def _content(memory: Memory, span: Span) -> bytes:
    with memory.reading(span) as views:
        return b"".join(views)


def resources() -> frozenset[str]:
    """Threads and open sockets of this process, without anyio's idle workers."""
    threads = {f"thread {thread.ident}" for thread in threading.enumerate() if "AnyIO" not in thread.name}
    return frozenset(threads | set(_sockets()))


def _sockets() -> Iterator[str]:
    """Linux only; elsewhere none."""
    with suppress(OSError):
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                link = os.readlink(f"/proc/self/fd/{descriptor}")
                if link.startswith("socket:"):
                    yield link

