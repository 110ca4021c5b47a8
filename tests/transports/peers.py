"""The other end of a TCP transfer as tests play it: servers that run a script, callers that say what they like."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress

import anyio

from coldstart.transports import wire
from coldstart.transports.wire import Status, Ticket


@contextmanager
def answering(script: Callable[[socket.socket], None], connections: int) -> Iterator[bytes]:
    """A server that runs ``script`` on so many connections, each in a thread; yields a ticket to it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ticket = Ticket(host="127.0.0.1", port=listener.getsockname()[1], secret=bytes(16), transfer="t")

        def serve() -> None:
            with suppress(OSError):
                sock, _ = listener.accept()
                with sock, suppress(OSError):
                    sock.settimeout(30)
                    script(sock)

        threads = [threading.Thread(target=serve) for _ in range(connections)]
        for thread in threads:
            thread.start()
        try:
            yield ticket.encode()
        finally:
            wire.shut(listener)  # wakes those who still accept
            for thread in threads:
                thread.join()


@contextmanager
def connected(ticket: Ticket) -> Iterator[socket.socket]:
    with socket.create_connection((ticket.host, ticket.port), timeout=5) as sock:
        yield sock


@contextmanager
def admitted(ticket: Ticket) -> Iterator[socket.socket]:
    """A raw joiner that has shown its secret."""
    with connected(ticket) as sock:
        sock.sendall(wire.hello(ticket))
        assert wire.read_answer(sock) == (Status.OK, wire.NOWHERE)
        yield sock


@contextmanager
def all_of(contexts: Iterable[AbstractContextManager[socket.socket]]) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(context) for context in contexts]


def until_closed(sock: socket.socket) -> bytes:
    """Everything the peer still says."""
    data = b""
    with suppress(ConnectionError):
        while more := sock.recv(65536):
            data += more
    return data


async def in_thread(work: Callable[[], object]) -> object:
    return await anyio.to_thread.run_sync(work)
