"""The source's side of tcp: a listening socket, and threads that send lent memory.

Decides who is admitted, how many connections there are, and when one ends. A slow, dead or
hostile joiner costs its own thread and nothing else: every wait has a deadline, unknown callers
have two seconds, and where there are too many the oldest one is dropped of the address that has most.
It must not know the event loop; ``tcp.py`` calls it from threads. What is said is in ``wire.py``, what is
proven in ``proofs.py``, how fast in ``pacing.py``.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final

from coldstart.admission import Keyless
from coldstart.errors import TransportError
from coldstart.ports import Grant, Memory, TransportSettings
from coldstart.proofs import NUMBER_BYTES, PROOF_BYTES, Exchange
from coldstart.transports import wire
from coldstart.transports.pacing import Pace
from coldstart.transports.views import advanced, batches
from coldstart.transports.wire import Status, Ticket, shut

MAX_STRANGERS: Final = 128
"""Connections that have not yet shown a secret; well above what all slots together open at once."""
HELLO_SECONDS: Final = 2.0
"""A connection that has not shown a grant's secret within this is a stranger's, and closed."""
HOST_ADVICE: Final = "set the host to one address of this machine that peers can reach"
_ACCEPT_PAUSE: Final = 0.1
_BACKLOG: Final = 128

_log = logging.getLogger(__name__)

_Claimed = tuple[bytes, bytes] | Status
"""Transfer and secret that a caller knows, or why it is refused."""


class _Lent:
    """One grant while it lives. ``sockets`` belongs to the lender's lock."""

    def __init__(self, ticket: Ticket, memory: Memory, seconds: float) -> None:
        self.ticket = ticket
        self.memory = memory
        self.deadline = time.monotonic() + seconds
        self.ended = threading.Event()
        self.sockets: set[socket.socket] = set()

    @property
    def seconds_left(self) -> float:
        """0 once the grant has ended in any way."""
        return 0.0 if self.ended.is_set() else max(0.0, self.deadline - time.monotonic())


class Lender:
    """Lends memory to the holders of tickets. Any thread may call; only ``end`` never waits."""

    def __init__(self, settings: TransportSettings) -> None:
        self._settings = settings
        self._pace = Pace(settings.lend_bytes_per_second) if settings.lend_bytes_per_second > 0 else None
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._opening = threading.Lock()
        self._listener: _Listener | None = None
        self._grants: dict[bytes, _Lent] = {}
        self._ending: set[_Lent] = set()
        self._strangers: dict[socket.socket, str] = {}  # with where they come from; oldest first
        self._conversations = 0
        self._keyless = Keyless("tcp")
        self._closed = False
        self.sent = 0
        """Bytes of lent memory; a request is counted when it has been answered, or has failed."""

    def lend(self, grant: Grant, memory: Memory) -> Ticket:
        """Open ``memory`` to the holder of the returned ticket; a second call replaces the first."""
        host, port = self._listening()
        ticket = Ticket(host=host, port=port, secret=secrets.token_bytes(16), transfer=grant.transfer)
        with self._lock:
            if self._closed:
                raise _closed()
            for key in [key for key, lent in self._grants.items() if key == ticket.key or lent.seconds_left == 0]:
                self._cut(self._grants.pop(key))
            self._grants[ticket.key] = _Lent(ticket, memory, grant.seconds)
        return ticket

    def end(self, transfer: str) -> bool:
        """End a grant at once; true if nothing reads for it already."""
        with self._lock:
            for key in [key for key, lent in self._grants.items() if lent.ticket.transfer == transfer]:
                self._cut(self._grants.pop(key))
            return self._quiet(transfer)

    def reading(self, transfer: str) -> bool:
        """Whether a connection is open for the grant."""
        with self._lock:
            return any(lent.sockets for lent in self._grants.values() if lent.ticket.transfer == transfer)

    def wait_quiet(self, transfer: str, seconds: float) -> bool:
        """Wait until no thread reads for an ended grant; false if one still does after ``seconds``."""
        with self._changed:
            return self._changed.wait_for(lambda: self._quiet(transfer), seconds)

    def close(self, seconds: float) -> None:
        """End everything and wait for all threads, at most ``seconds``."""
        with self._lock:
            self._closed = True
            while self._grants:
                self._cut(self._grants.popitem()[1])
            for sock in self._strangers:
                shut(sock)
        with self._opening:
            if self._listener is not None:
                self._listener.close()
                self._listener = None
        with self._changed:
            if not self._changed.wait_for(lambda: self._conversations == 0, seconds):
                _log.warning("tcp source: %d connections still busy %g s after closing", self._conversations, seconds)

    def _listening(self) -> tuple[str, int]:
        with self._opening:  # a lock of its own: resolving the host may take long
            if self._closed:
                raise _closed()
            if self._listener is None:
                self._listener = _Listener(self._settings.host, self._accepted)
            return self._listener.address

    def _cut(self, lent: _Lent) -> None:
        lent.ended.set()
        if lent.sockets:
            self._ending.add(lent)
        for sock in lent.sockets:
            shut(sock)

    def _quiet(self, transfer: str) -> bool:
        return not any(lent.ticket.transfer == transfer for lent in self._ending)

    # ------------------------------------------------------------------- one thread per connection

    def _accepted(self, sock: socket.socket, address: str) -> None:
        with self._lock:
            if self._closed:
                sock.close()
                return
            if len(self._strangers) >= MAX_STRANGERS:
                crowded, _ = Counter(self._strangers.values()).most_common(1)[0]
                oldest = next(sock for sock, where in self._strangers.items() if where == crowded)
                del self._strangers[oldest]
                shut(oldest)
            self._strangers[sock] = address
            self._conversations += 1
        thread = threading.Thread(target=self._converse, args=(sock,), name="coldstart-tcp-source", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads on this machine: the caller is turned away
            _log.warning("tcp source: cannot start a thread for a connection")
            self._finished(sock, None)

    def _converse(self, sock: socket.socket) -> None:
        lent: _Lent | None = None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            until = time.monotonic() + HELLO_SECONDS
            claimed, proof = self._claimed(sock, until)
            lent, status = self._admitted(sock, claimed)
            sock.settimeout(self._settings.io_seconds)
            sock.sendall(wire.answer(status) + (proof if lent is not None else b""))
            if lent is not None:
                self._serve(sock, lent)
        except OSError:
            pass  # the joiner has gone, is too slow, or was cut off; it finds out by itself
        except Exception:
            _log.exception("tcp source: a connection ended by an error")
        finally:
            self._finished(sock, lent)

    def _finished(self, sock: socket.socket, lent: _Lent | None) -> None:
        with self._changed:  # closed under the lock, so that nobody shuts a descriptor that is reused
            sock.close()
            self._strangers.pop(sock, None)
            if lent is not None:
                lent.sockets.discard(sock)
                if not lent.sockets:
                    self._ending.discard(lent)
            self._conversations -= 1
            self._changed.notify_all()

    def _claimed(self, sock: socket.socket, until: float) -> tuple[_Claimed, bytes]:
        """Transfer and secret that the caller knows, and our proof for it, if there are keys; or the refusal."""
        signer, hello = self._settings.signer, wire.read_hello(sock, HELLO_SECONDS)
        if hello is None:
            return Status.REFUSED, b""
        if signer is None:
            if hello.keyed:
                self._keyless.note()
            return (Status.KEYLESS if hello.keyed else (hello.transfer, hello.word)), b""
        with self._lock:
            lent = self._grants.get(hello.transfer)
        if not hello.keyed:
            signer.unproven("tcp joiner")
            return Status.UNPROVEN, b""
        if lent is None:
            return Status.REFUSED, b""
        number, ticket = secrets.token_bytes(NUMBER_BYTES), lent.ticket
        sock.sendall(wire.answer(Status.OK) + number)
        exchange = Exchange("tcp", ticket.key, ticket.secret, hello.word, number)
        if not exchange.proven(signer, "joiner", wire.receive_by(sock, PROOF_BYTES, until)):
            return Status.UNPROVEN, b""
        return (hello.transfer, ticket.secret), exchange.proof(signer, "source")

    def _admitted(self, sock: socket.socket, claimed: _Claimed) -> tuple[_Lent | None, Status]:
        """The grant whose secret the caller has shown, which then owns ``sock``; or the refusal."""
        with self._lock:
            self._strangers.pop(sock, None)
            if isinstance(claimed, Status):
                return None, claimed
            transfer, secret = claimed
            lent = self._grants.get(transfer)
            if lent is None or not hmac.compare_digest(lent.ticket.secret, secret) or lent.seconds_left == 0:
                return None, Status.REFUSED
            if len(lent.sockets) >= wire.MAX_CONNECTIONS:
                return None, Status.BUSY
            lent.sockets.add(sock)
            return lent, Status.OK

    def _serve(self, sock: socket.socket, lent: _Lent) -> None:
        """Answer requests until the joiner closes, the grant ends, or nothing moves for too long."""
        while True:
            sock.settimeout(self._settings.io_seconds)
            span = wire.read_request(sock)
            if lent.seconds_left == 0:
                sock.sendall(wire.answer(Status.REVOKED))
                return
            if not 0 < span.length <= wire.MAX_REQUEST or span.end > lent.memory.layout.nbytes:
                sock.sendall(wire.answer(Status.BAD_REQUEST))
                return
            with ExitStack() as stack:
                try:
                    views = stack.enter_context(lent.memory.reading(span))
                except Exception:
                    _log.exception("tcp source: cannot read %d bytes at %d", span.length, span.offset)
                    sock.sendall(wire.answer(Status.FAILED))
                    return
                sock.sendall(wire.answer(Status.OK, span))
                self._send(sock, views, lent)

    def _send(self, sock: socket.socket, views: Sequence[memoryview], lent: _Lent) -> None:
        sent = 0
        try:
            for count in self._sendings(sock, views, lent):
                sent += count
        finally:
            with self._lock:
                self.sent += sent

    def _sendings(self, sock: socket.socket, views: Sequence[memoryview], lent: _Lent) -> Iterator[int]:
        """Send, a piece at a time; how long each was."""
        quantum = self._pace.quantum if self._pace else wire.MAX_REQUEST
        for batch in batches(views, quantum):
            if self._pace is not None:
                delay = self._pace.reserve(sum(map(len, batch)), time.monotonic())
                lent.ended.wait(min(delay, lent.seconds_left))
            unsent = batch
            while unsent:
                left = lent.seconds_left
                if left == 0:
                    raise ConnectionAbortedError("the grant has ended")
                sock.settimeout(min(self._settings.io_seconds, left))
                count = sock.sendmsg(unsent)
                unsent = advanced(unsent, count)
                yield count


def bound(host: str) -> socket.socket:
    """A socket at any free port of ``host``. Raises OSError and nothing else; blocks while a name is looked up."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    except UnicodeError as error:
        raise OSError("not a host name") from error
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock


class _Listener:
    """The listening socket and the thread that accepts."""

    def __init__(self, host: str, accepted: Callable[[socket.socket, str], None]) -> None:
        self._accepted = accepted
        try:
            self._socket = bound(host)
            self._socket.listen(_BACKLOG)
        except OSError as error:
            raise TransportError(
                f"tcp cannot listen on {host}: {error.strerror or error}",
                reason="unreachable",
                advice=HOST_ADVICE,
            ) from error
        self._socket.setblocking(False)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._waker, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="coldstart-tcp-accept", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._waker.close()  # seen as end of file on the other side
        self._thread.join()
        self._woken.close()
        self._socket.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not any(key.fileobj is self._woken for key, _ in selector.select()):
                try:
                    sock, caller = self._socket.accept()
                except BlockingIOError:
                    continue
                except OSError as error:  # out of descriptors: those who wait may still be served later
                    _log.warning("tcp source: cannot accept: %s", error)
                    selector.unregister(self._socket)
                    selector.select(_ACCEPT_PAUSE)
                    selector.register(self._socket, selectors.EVENT_READ)
                    continue
                self._accepted(sock, str(caller[0]))


def _closed() -> TransportError:
    return TransportError("tcp transport is closed", reason="closed")
