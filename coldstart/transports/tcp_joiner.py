"""The joiner's side of tcp: a few connections that share the spans to be fetched.

Decides what is asked for over which connection and in slices of what size, and turns every way of failing into one
TransportError with a reason. Bytes go from the socket straight into the target's memory; once
all threads have returned, nothing can write there. It must not know the event loop: ``tcp.py``
runs :meth:`Pull.run` in threads and calls :meth:`Pull.stop` to end them early.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from coldstart.errors import ColdstartError, TransportError
from coldstart.layout import Span
from coldstart.ports import Landed, Memory, Signer
from coldstart.proofs import NUMBER_BYTES, PROOF_BYTES, Exchange
from coldstart.transports import wire
from coldstart.transports.tcp_kept import Kept
from coldstart.transports.wire import Status, Ticket

QUICK_SECONDS: Final = 0.05
"""A slice that takes less may be followed by one of twice its size."""
SLOW_SECONDS: Final = 0.25
"""No slice should take longer: what has landed is the only sign of life that the joiner's stall clock sees."""
IDLE_SECONDS: Final = 1.0
"""A connection with nothing to do leaves after this, well before the source would close it."""
_MAX_ASKED: Final = 64

_REFUSALS: Final = {
    Status.REFUSED: ("refused", "does not know this ticket"),
    Status.BUSY: ("refused", "has too many connections for this ticket"),
    Status.REVOKED: ("revoked", "has ended the grant"),
    Status.BAD_REQUEST: ("protocol", "says that the request is outside its layout"),
    Status.UNPROVEN: ("refused", "wants a proof by a key that it knows (COLDSTART_KEYS)"),
    Status.KEYLESS: ("refused", "has no keys by which it could prove itself (COLDSTART_KEYS)"),
    Status.FAILED: ("closed", "could not read its own memory"),
}


def next_size(size: int, length: int, seconds: float) -> int:
    """Bytes to ask for at a time, now that ``length`` bytes have taken ``seconds``.

    Args:
        size: what is asked for at present: :data:`wire.SMALLEST_SLICE` at first, doubled and halved here.
        length: of the slice that has just landed. It differs from ``size`` where a span ended,
            or where the slice was asked for before the last change.
    """
    if seconds < QUICK_SECONDS:
        return min(2 * size, wire.SLICE) if length >= size else size
    if seconds > SLOW_SECONDS:
        while size > wire.SMALLEST_SLICE and seconds * size > SLOW_SECONDS * length:
            size //= 2
    return size


class Pull:
    """One pull: shared by the threads of its connections, which are ``kept`` ones as far as there are any.

    With a ``signer`` both sides prove at the beginning of each that they have a key of the fleet.
    It may be given more to fetch until the last byte of what it has is here.
    """

    def __init__(
        self,
        ticket: Ticket,
        spans: Sequence[Span],
        into: Memory,
        landed: Landed,
        *,
        io_seconds: float,
        kept: Kept | None = None,
        signer: Signer | None = None,
        connections: int = 1,
    ) -> None:
        self.ticket = ticket
        self._rest = deque(span for span in spans if span.length)
        self._into = into
        self._landed = landed
        self._io_seconds = io_seconds
        self._kept = kept or Kept()
        self._signer = signer
        self._left = sum(span.length for span in self._rest)
        self.connections = min(max(connections, 1), wire.MAX_CONNECTIONS, self._slices)
        """Threads that are to run it: no use in more than there are smallest slices."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._coming = 0
        """Slices that were asked for and have not landed."""
        self._idle = self.connections
        """Connections that have nothing to do, or are not made yet."""
        self._sockets: set[socket.socket] = set()
        self._stopped = False
        self.error: Exception | None = None
        """What ended the pull early; the first failure counts, the rest follow from it."""

    @property
    def stopped(self) -> bool:
        """Whether it was told to end early."""
        return self._stopped

    @property
    def _slices(self) -> int:
        return sum(-(-span.length // wire.SMALLEST_SLICE) for span in self._rest)

    def stop(self, error: Exception | None = None) -> None:
        """End all threads soon: no socket delivers anything any more."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self.error = error
                self._changed.notify_all()
            for sock in self._sockets:
                wire.shut(sock)

    def extend(self, spans: Sequence[Span]) -> bool:
        """Fetch ``spans``, too; false, and nothing of it, if everything else is here or the pull was stopped."""
        with self._lock:
            if self._stopped or not (self._rest or self._coming):
                return False
            self._rest.extend(span for span in spans if span.length)
            self._left += sum(span.length for span in spans)
            self._changed.notify_all()
            return True

    def run(self) -> None:
        """Fetch over one connection until nothing is left or the pull is stopped; never raises."""
        try:
            with self._connected() as sock:
                self._fetch(sock)
        except OSError as error:
            self.stop(self._explained(error))
        except Exception as error:
            self.stop(error)

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        """A connection that was admitted, now or for an earlier pull."""
        kept = self._kept.take(self.ticket)
        family = socket.AF_INET6 if ":" in self.ticket.host else socket.AF_INET
        sock, well = kept or socket.socket(family, socket.SOCK_STREAM), False
        try:
            with self._lock:
                if self._stopped:
                    raise ConnectionAbortedError("stopped")
                self._sockets.add(sock)
            if kept is None:
                self._dial(sock)
            yield sock
            well = True
        finally:
            with self._lock:  # before it is closed: nobody shuts a descriptor that is reused
                self._sockets.discard(sock)
            if self.stopped:
                wire.reset_on_close(sock)
            if self.stopped or not well or not self._kept.give(self.ticket, sock):
                sock.close()

    def _dial(self, sock: socket.socket) -> None:
        sock.settimeout(self._io_seconds)
        try:
            sock.connect((self.ticket.host, self.ticket.port))
        except OSError as error:
            raise TransportError(
                f"cannot connect to tcp source {self.ticket}: {error.strerror or error}", reason="unreachable"
            ) from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._signer is not None:
            self._prove(sock, self._signer)
            return
        sock.sendall(wire.hello(self.ticket))
        self._checked(wire.read_answer(sock), wire.NOWHERE)

    def _prove(self, sock: socket.socket, signer: Signer) -> None:
        """Prove that we have a key of the fleet, and have the source prove the same."""
        number, until = secrets.token_bytes(NUMBER_BYTES), time.monotonic() + self._io_seconds
        sock.sendall(wire.keyed_hello(self.ticket, number))
        self._checked(wire.read_answer(sock), wire.NOWHERE)
        theirs = wire.receive_by(sock, NUMBER_BYTES, until)
        exchange = Exchange("tcp", self.ticket.key, self.ticket.secret, number, theirs)
        sock.sendall(exchange.proof(signer, "joiner"))
        self._checked(wire.read_answer(sock), wire.NOWHERE)
        if not exchange.proven(signer, "source", wire.receive_by(sock, PROOF_BYTES, until)):
            raise TransportError(
                f"tcp source {self.ticket} does not prove that it has a key of the fleet", reason="refused"
            )
        sock.settimeout(self._io_seconds)

    def _fetch(self, sock: socket.socket) -> None:
        requests = _Requests(sock, self._next)
        with self._lock:
            self._idle -= 1
        while True:
            requests.send(busy=False)
            if not requests.asked:
                if self._more():
                    continue
                return
            span = requests.take()
            began = time.monotonic()
            self._checked(wire.read_answer(sock), span)
            with self._into.writing(span) as views:
                wire.receive_into(sock, views, requests.send)
            requests.size = next_size(requests.size, span.length, time.monotonic() - began)
            self._landed(span)
            self._came()

    def _next(self, size: int, busy: bool) -> Span | None:
        """Take at most ``size`` bytes from what is left; they are this connection's to fetch.

        The last ones are divided among all connections, and one that is ``busy`` leaves them to those that are not.
        """
        with self._lock:
            if not self._rest or self._stopped or (busy and self._idle):
                return None
            span = self._rest.popleft()
            size = min(size, max(wire.SMALLEST_SLICE, -(-self._left // self.connections)), span.length)
            if span.length > size:
                self._rest.appendleft(Span(span.offset + size, span.length - size))
            self._left -= size
            self._coming += 1
            return Span(span.offset, size)

    def _came(self) -> None:
        with self._lock:
            self._coming -= 1
            if not (self._rest or self._coming):
                self._changed.notify_all()

    def _more(self) -> bool:
        """Wait while others still fetch: until then there may be more to do."""
        with self._lock:
            self._idle += 1
            self._changed.wait_for(lambda: self._rest or self._stopped or not self._coming, IDLE_SECONDS)
            self._idle -= 1
            return bool(self._rest) and not self._stopped

    def _checked(self, answer: tuple[int, Span], expected: Span) -> None:
        status, span = answer
        if status in _REFUSALS:
            reason, words = _REFUSALS[Status(status)]
            raise TransportError(f"tcp source {self.ticket} {words}", reason=reason)
        if status != Status.OK or span != expected:
            raise TransportError(
                f"tcp source {self.ticket} broke the protocol: status {status} with {span.length} bytes"
                f" at {span.offset}, asked for {expected.length} at {expected.offset}",
                reason="protocol",
            )

    def _explained(self, error: OSError) -> ColdstartError:
        if isinstance(error, TimeoutError):
            return TransportError(
                f"tcp source {self.ticket} sent nothing for {self._io_seconds:g} s", reason="timeout"
            )
        return TransportError(
            f"tcp source {self.ticket} closed the connection: {error.strerror or error}", reason="closed"
        )


class _Requests:
    """What one connection has been asked for and has not brought, in order; two slices of ``size`` at a time.

    So the next one is on its way while one is received; and what can be asked for in the middle of one, is.
    """

    def __init__(self, sock: socket.socket, following: Callable[[int, bool], Span | None]) -> None:
        self._sock, self._following = sock, following
        self.size = wire.SMALLEST_SLICE
        self.asked: deque[Span] = deque()
        self._ahead = 0

    def send(self, *, busy: bool = True) -> None:
        """Ask for as much as there should be ahead; ``busy`` while a slice is received."""
        while self._ahead <= self.size and len(self.asked) < _MAX_ASKED:
            span = self._following(self.size, busy or bool(self.asked))
            if span is None:
                return
            self._sock.sendall(wire.request(span))
            self.asked.append(span)
            self._ahead += span.length

    def take(self) -> Span:
        """The slice that comes next."""
        span = self.asked.popleft()
        self._ahead -= span.length
        return span
