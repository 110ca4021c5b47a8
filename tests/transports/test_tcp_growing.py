"""A pull of tcp that is asked for more: at once, in the middle of a slice, over whichever connection is free."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import anyio
import anyio.to_thread
import pytest

from coldstart.layout import Span
from coldstart.ports import Growing, TransportSettings
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transfers import MIB, Landings, eventually
from coldstart.transports import tcp_joiner, wire
from coldstart.transports.tcp import FACTORY, TcpTransport
from coldstart.transports.wire import Status, Ticket

SMALLEST = wire.SMALLEST_SLICE
LAYOUT = layout_of(4 * MIB)
SECONDS = 10.0

Script = Callable[[socket.socket, "Source"], None]


class Source:
    """A source that does what a test says; ``asked`` has every request, by connection."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self.asked: list[tuple[int, Span]] = []
        self.connections = 0
        self.go = threading.Event()
        port = self._listener.getsockname()[1]
        self.ticket = Ticket(host="127.0.0.1", port=port, secret=bytes(16), transfer="t").encode()
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def request(self, sock: socket.socket, number: int) -> Span:
        span = wire.read_request(sock)
        self.asked.append((number, span))
        return span

    def close(self) -> None:
        self.go.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in (self._accepting, *self._threads):
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                thread = threading.Thread(target=self._converse, args=(sock,))
                self._threads.append(thread)
                thread.start()

    def _converse(self, sock: socket.socket) -> None:
        with sock, suppress(OSError):
            sock.settimeout(SECONDS)
            wire.read_hello(sock, SECONDS)
            sock.sendall(wire.answer(Status.OK))
            self.connections += 1
            self._script(sock, self)


@contextmanager
def source(script: Script) -> Iterator[Source]:
    made = Source(script)
    try:
        yield made
    finally:
        made.close()


@asynccontextmanager
async def joiner(connections: int) -> AsyncIterator[TcpTransport]:
    transport = FACTORY.open(TransportSettings(connections=connections, io_seconds=SECONDS))
    try:
        with anyio.fail_after(2 * SECONDS):
            yield transport
    finally:
        await transport.aclose()


def test_tcp_grows() -> None:
    assert isinstance(FACTORY.open(TransportSettings()), Growing)


async def test_more_is_asked_for_in_the_middle_of_a_slice() -> None:
    """Else each request would wait for the end of a slice, and the link for the request."""

    def script(sock: socket.socket, source: Source) -> None:
        first = source.request(sock, 0)
        sock.sendall(wire.answer(Status.OK, first) + bytes(first.length // 2))
        source.go.wait(SECONDS)
        sock.sendall(bytes(1))  # something arrives, and the joiner looks up
        second = source.request(sock, 0)
        sock.sendall(bytes(first.length // 2 - 1) + wire.answer(Status.OK, second) + bytes(second.length))

    target, landed = BytesMemory(LAYOUT, fill=7), Landings()
    with source(script) as lender:
        async with joiner(1) as transport, anyio.create_task_group() as tasks:
            tasks.start_soon(transport.pull, lender.ticket, [Span(0, SMALLEST)], target, landed)
            await eventually(lambda: bool(lender.asked))
            assert transport.extend(lender.ticket, [Span(MIB, SMALLEST)])
            lender.go.set()
        assert landed.spans == [Span(0, SMALLEST), Span(MIB, SMALLEST)]
        assert target.content(Span(0, 2 * MIB)).count(0) == 2 * SMALLEST


def held_by_one(sock: socket.socket, source: Source) -> None:
    """The first request is answered when ``go`` is set, all others at once."""
    number = source.connections
    while True:
        span = source.request(sock, number)
        if len(source.asked) == 1:
            source.go.wait(SECONDS)
        sock.sendall(wire.answer(Status.OK, span) + bytes(span.length))


async def test_what_is_added_goes_to_the_connection_that_has_nothing_to_do() -> None:
    landed = Landings()
    with source(held_by_one) as lender:
        async with joiner(2) as transport, anyio.create_task_group() as tasks:
            tasks.start_soon(transport.pull, lender.ticket, [Span(0, 2 * SMALLEST)], BytesMemory(LAYOUT), landed)
            await eventually(lambda: len(landed.spans) == 1)  # by the other one, which waits for more
            assert transport.extend(lender.ticket, [Span(MIB, MIB)])
            await eventually(lambda: sum(span.length for span in landed.spans) == SMALLEST + MIB)
            lender.go.set()
        held, *others = lender.asked
        assert all(number != held[0] for number, _ in others)


async def test_a_connection_that_waits_too_long_leaves_and_the_others_bring_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The source would close it as one that moves nothing; that is no failure of the pull."""
    monkeypatch.setattr(tcp_joiner, "IDLE_SECONDS", 0.01)
    landed, left = Landings(), threading.Event()

    def script(sock: socket.socket, source: Source) -> None:
        try:
            held_by_one(sock, source)
        finally:
            left.set()

    with source(script) as lender:
        async with joiner(2) as transport, anyio.create_task_group() as tasks:
            tasks.start_soon(transport.pull, lender.ticket, [Span(0, 2 * SMALLEST)], BytesMemory(LAYOUT), landed)
            await eventually(left.is_set)
            assert transport.extend(lender.ticket, [Span(MIB, MIB)])
            lender.go.set()
        assert sum(span.length for span in landed.spans) == 2 * SMALLEST + MIB


def test_the_last_slices_are_divided_among_all_connections() -> None:
    """So that a chunk takes no longer than the whole link needs for it."""
    ticket = Ticket(host="127.0.0.1", port=1, secret=bytes(16), transfer="t")
    spans = [Span(0, 4 * MIB)]
    pull = tcp_joiner.Pull(ticket, spans, BytesMemory(LAYOUT), Landings(), io_seconds=SECONDS, connections=2)
    sizes = [span.length for span in iter(lambda: pull._next(wire.SLICE, False), None)]
    assert sizes == [2 * MIB, MIB, MIB // 2, SMALLEST, SMALLEST]
