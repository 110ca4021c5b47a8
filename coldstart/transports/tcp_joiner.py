"""The joiner's side of tcp: a few connections that empty one queue of slices.

Decides what is asked for over which connection, and turns every way of failing into one
TransportError with a reason. Bytes go from the socket straight into the target's memory; once
all threads have returned, nothing can write there. It must not know the event loop: ``tcp.py``
runs :meth:`Pull.run` in threads and calls :meth:`Pull.stop` to end them early.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from coldstart.errors import ColdstartError, TransportError
from coldstart.layout import Span
from coldstart.ports import Landed, Memory
from coldstart.transports import wire
from coldstart.transports.wire import Status, Ticket

WINDOW: Final = 2 * wire.SLICE
"""Bytes asked for ahead on one connection: the next slice is on its way while one is received."""
_MAX_ASKED: Final = 64

_REFUSALS: Final = {
    Status.REFUSED: ("refused", "does not know this ticket"),
    Status.BUSY: ("refused", "has too many connections for this ticket"),
    Status.REVOKED: ("revoked", "has ended the grant"),
    Status.BAD_REQUEST: ("protocol", "says that the request is outside its layout"),
    Status.FAILED: ("closed", "could not read its own memory"),
}


class Pull:
    """One pull: shared by the threads of its connections."""

    def __init__(
        self, ticket: Ticket, spans: Sequence[Span], into: Memory, landed: Landed, *, io_seconds: float
    ) -> None:
        self._ticket = ticket
        self._queue = deque(wire.slices(spans))
        self._into = into
        self._landed = landed
        self._io_seconds = io_seconds
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._stopped = False
        self.error: Exception | None = None
        """What ended the pull early; the first failure counts, the rest follow from it."""

    @property
    def slices(self) -> int:
        """Slices not yet asked for: no use in more connections than that."""
        return len(self._queue)

    def stop(self, error: Exception | None = None) -> None:
        """End all threads soon: no socket delivers anything any more."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self.error = error
            for sock in self._sockets:
                wire.shut(sock)

    def run(self) -> None:
        """Work on the queue over one connection until it is empty or the pull is stopped; never raises."""
        try:
            with self._connected() as sock:
                self._fetch(sock)
        except OSError as error:
            self.stop(self._explained(error))
        except Exception as error:
            self.stop(error)

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        """A connection that was admitted."""
        family = socket.AF_INET6 if ":" in self._ticket.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            with self._lock:
                if self._stopped:
                    raise ConnectionAbortedError("stopped")
                self._sockets.add(sock)
            try:
                sock.settimeout(self._io_seconds)
                try:
                    sock.connect((self._ticket.host, self._ticket.port))
                except OSError as error:
                    raise TransportError(
                        f"cannot connect to tcp source {self._ticket}: {error.strerror or error}", reason="unreachable"
                    ) from error
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.sendall(wire.hello(self._ticket))
                self._checked(wire.read_answer(sock), wire.NOWHERE)
                yield sock
            finally:
                with self._lock:  # before it is closed: nobody shuts a descriptor that is reused
                    self._sockets.discard(sock)

    def _fetch(self, sock: socket.socket) -> None:
        asked: deque[Span] = deque()
        ahead = 0
        while True:
            while ahead < WINDOW and len(asked) < _MAX_ASKED and (span := self._next()) is not None:
                sock.sendall(wire.request(span))
                asked.append(span)
                ahead += span.length
            if not asked:
                return
            span = asked.popleft()
            ahead -= span.length
            self._checked(wire.read_answer(sock), span)
            with self._into.writing(span) as views:
                wire.receive_into(sock, views)
            self._landed(span)

    def _next(self) -> Span | None:
        with self._lock:
            return self._queue.popleft() if self._queue and not self._stopped else None

    def _checked(self, answer: tuple[int, Span], expected: Span) -> None:
        status, span = answer
        if status in _REFUSALS:
            reason, words = _REFUSALS[Status(status)]
            raise TransportError(f"tcp source {self._ticket} {words}", reason=reason)
        if status != Status.OK or span != expected:
            raise TransportError(
                f"tcp source {self._ticket} broke the protocol: status {status} with {span.length} bytes"
                f" at {span.offset}, asked for {expected.length} at {expected.offset}",
                reason="protocol",
            )

    def _explained(self, error: OSError) -> ColdstartError:
        if isinstance(error, TimeoutError):
            return TransportError(
                f"tcp source {self._ticket} sent nothing for {self._io_seconds:g} s", reason="timeout"
            )
        return TransportError(
            f"tcp source {self._ticket} closed the connection: {error.strerror or error}", reason="closed"
        )
