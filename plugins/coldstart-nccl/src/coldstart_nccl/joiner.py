"""The joiner's side: one pull, in one thread.

Decides what is asked for, and that a pull has ended only when nothing can write into the target
any more. It must not know the event loop (``transport.py``) nor any library (``communicator.py``).
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from coldstart.errors import TransportError
from coldstart.layout import Span, merged
from coldstart.ports import Landed, Memory
from coldstart_nccl import conduct, hush, wire
from coldstart_nccl.communicator import RECEIVER, Backend, Communicator
from coldstart_nccl.control import Control
from coldstart_nccl.hush import Hush
from coldstart_nccl.schedule import Places, cut, largest
from coldstart_nccl.wire import Answer, Ticket, Word


class Pull:
    """One pull; ``error`` says why it ended early.

    Args:
        changed: called when the target is quiet, or never will be (``hush``); from any thread.
    """

    def __init__(
        self,
        backend: Backend,
        ticket: Ticket,
        spans: Sequence[Span],
        into: Memory,
        landed: Landed,
        *,
        io_seconds: float,
        changed: Callable[[], None],
    ) -> None:
        self._backend, self._ticket, self._into, self._landed = backend, ticket, into, landed
        self._spans = merged(spans)
        self._io_seconds = io_seconds
        self._lock = threading.Lock()
        self._control: Control | None = None
        self._stopped: TransportError | None = None
        self.hush = Hush(into.device, changed)
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, name=f"coldstart-{backend.name}-pull", daemon=True)

    def stop(self, error: TransportError) -> None:
        """End soon. Any thread."""
        with self._lock:
            if self._stopped is not None or self.hush.quiet:
                return
            self._stopped = error
            control = self._control
        self.hush.expect()
        if control is not None:
            control.stop(error)

    def _run(self) -> None:
        pair: Communicator | None = None
        try:
            hush.check(self._into.device)
            with self._connected() as control:
                try:
                    answer = self._admitted(control)
                    size = largest(self._spans, answer.message_bytes)
                    pair = self._backend.connect(
                        RECEIVER, answer.invitation, self._into.device, largest=size, ctas=answer.ctas
                    )
                    self._fetch(pair, control, answer.message_bytes)
                    wire.send(control.sock, [bytes([Word.DONE])], self._io_seconds)
                except Exception as error:
                    self.error = control.explained(error)
        except Exception as error:
            self.error = self._stopped or error
        if pair is not None and self.error is not None:  # the connection is closed: the other side aborts as well
            self.hush.expect()
            pair.abort()
        self.hush.reached()
        if pair is not None and self.error is None:
            pair.close()

    @contextmanager
    def _connected(self) -> Iterator[Control]:
        family = socket.AF_INET6 if ":" in self._ticket.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        control = Control(sock, f"{self._backend.name} source {self._ticket}", self._io_seconds)
        with self._lock:
            self._control = control
            stopped = self._stopped
        try:
            if stopped is not None:
                raise stopped
            sock.settimeout(self._io_seconds)
            try:
                sock.connect((self._ticket.host, self._ticket.port))
            except OSError as error:
                raise TransportError(
                    f"cannot connect to {self._backend.name} source {self._ticket}: {error.strerror or error}",
                    reason="unreachable",
                ) from error
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield control
        finally:
            control.end()

    def _admitted(self, control: Control) -> Answer:
        """Show the secret, say what is wanted, and take the invitation."""
        wire.send(control.sock, [wire.hello(self._ticket), *wire.request(self._spans)], self._io_seconds)
        answer = wire.read_answer(control.sock, self._io_seconds)
        if answer.word != Word.OK:
            raise control.refusal(answer.word)
        self._backend.settle(self._into.device)
        return answer

    def _fetch(self, pair: Communicator, control: Control, message_bytes: int) -> None:
        places = Places.of(self._into)
        conduct.set_up(pair, control)
        messages = (places.message(span) for span in cut(self._spans, message_bytes))
        conduct.move(pair, control, messages, pair.receive, moved=self._landed)
