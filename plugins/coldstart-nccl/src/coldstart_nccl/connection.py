"""The joiner's side: a pair with one source, in one thread, for pull after pull.

Decides what is done once (to be admitted, and to build the pair, which takes 100 ms and more), who ends it, and
that a pull has ended only when nothing can write into the target any more. Until the first pull nothing of it is
touched. It must not know the event loop (``transport.py``) nor any library (``communicator.py``).
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from coldstart.admission import Claim, prove
from coldstart.driver import apart_from_captures
from coldstart.errors import TransportError
from coldstart.layout import Span, merged
from coldstart.ports import Landed, Memory, Region, Signer
from coldstart_nccl import conduct, hush, wire
from coldstart_nccl.communicator import RECEIVER, Backend, Communicator
from coldstart_nccl.control import Control
from coldstart_nccl.hush import Hush
from coldstart_nccl.schedule import Places, cut
from coldstart_nccl.wire import Answer, Ticket, Word


class Pull:
    """What one pull fetches, and whether it is over.

    Args:
        changed: called when the target is quiet, or never will be (``hush``); from any thread.
    """

    def __init__(self, spans: Sequence[Span], device: str, landed: Landed, changed: Callable[[], None]) -> None:
        self.spans, self.landed = merged(spans), landed
        self.hush = Hush(device, changed)
        self.done = False
        """Everything has landed."""


class Connection:
    """One pair; ``error`` says why it ended early.

    Args:
        changed: called when it is made, and when it is over or hangs; from any thread.
        signer: of the fleet, if it has keys: then both sides prove that they have one.
    """

    def __init__(
        self,
        backend: Backend,
        ticket: Ticket,
        into: Memory,
        *,
        io_seconds: float,
        changed: Callable[[], None],
        signer: Signer | None = None,
    ) -> None:
        self._backend, self._ticket, self._into, self._signer = backend, ticket, into, signer
        self._io_seconds, self._changed = io_seconds, changed
        self._regions = _regions(into)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._control: Control | None = None
        self._stopped: TransportError | None = None
        self._ending = False
        self._pulls: deque[Pull] = deque()
        self.hush = Hush(into.device, changed)
        self.error: Exception | None = None
        self.made = False
        self.thread = threading.Thread(target=self._run, name=f"coldstart-{backend.name}-pull", daemon=True)

    @property
    def over(self) -> bool:
        """Whether nothing is written through it any more."""
        return self.hush.quiet

    def suits(self, into: Memory) -> bool:
        """Whether it lives and receives into ``into`` as that lies now."""
        alive = not (self._ending or self.over) and self._stopped is None
        return alive and self._into is into and _regions(into) == self._regions

    def add(self, pull: Pull) -> None:
        """Do ``pull`` once the pair is built and those before it have ended; what comes too late is quiet at once."""
        with self._lock:
            over = self.hush.quiet
            if not over:
                self._pulls.append(pull)
                os.eventfd_write(self._wake, 1)
        if over:
            pull.hush.reached()

    def end(self) -> None:
        """Take it down, when no pull is under way."""
        with self._lock:
            self._ending = True
            if not self.hush.quiet:
                os.eventfd_write(self._wake, 1)

    def stop(self, error: TransportError) -> None:
        """End soon, whatever is under way. Any thread."""
        with self._lock:
            if self._stopped is not None or self.hush.quiet:
                return
            self._stopped = error
            control, pulls = self._control, tuple(self._pulls)
            os.eventfd_write(self._wake, 1)
        for calm in (self.hush, *(pull.hush for pull in pulls)):
            calm.expect()
        if control is not None:
            control.stop(error)

    # ------------------------------------------------------------------------------ in the thread

    def _run(self) -> None:
        with apart_from_captures(self._into.device):
            self._live()

    def _live(self) -> None:
        pair: Communicator | None = None
        try:
            hush.check(self._into.device)
            with self._connected() as control:
                try:
                    answer = self._admitted(control)
                    largest = min(answer.message_bytes, self._into.layout.nbytes)
                    pair = self._backend.connect(
                        RECEIVER, answer.invitation, self._into.device, largest=largest, ctas=answer.ctas
                    )
                    self._serve(pair, control, answer.message_bytes)
                except Exception as error:
                    self.error = control.explained(error)
        except Exception as error:
            self.error = self._stopped or error
        if pair is not None and self.error is not None:  # the connection is closed: the other side aborts as well
            self._expect()
            pair.abort()
        self._quiet()
        if pair is not None and self.error is None:
            pair.close()

    def _expect(self) -> None:
        with self._lock:
            pulls = tuple(self._pulls)
        for calm in (self.hush, *(pull.hush for pull in pulls)):
            calm.expect()

    def _quiet(self) -> None:
        with self._lock:
            pulls = tuple(self._pulls)
            self._pulls.clear()
            self.hush.reached(tell=False)
            os.close(self._wake)
        for pull in pulls:
            pull.hush.reached()
        self._changed()

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
        """Show the secret, or prove that we have a key, and take the invitation."""
        ticket, channel = self._ticket, control.channel
        if self._signer is None:
            channel.send(wire.hello(ticket), self._io_seconds)
        else:
            claim, hello = Claim(self._backend.name, ticket.key, ticket.secret), partial(wire.keyed_hello, ticket)
            prove(channel, self._signer, claim, hello, control.peer, self._io_seconds)
        answer = wire.read_answer(channel, self._io_seconds)
        if answer.word != Word.OK:
            raise control.refusal(answer.word)
        return answer

    def _serve(self, pair: Communicator, control: Control, message_bytes: int) -> None:
        conduct.meet(pair, control)
        self.made = True
        self._changed()
        while (pull := self._next(control)) is not None:
            self._fetch(pair, control, pull, message_bytes)
            with self._lock:
                self._pulls.popleft()
            pull.hush.reached()

    def _next(self, control: Control) -> Pull | None:
        """The next pull, when there is one; None when this is to end. Raises TransportError when the source ends it."""
        while True:
            with self._lock:
                if self._pulls:
                    return self._pulls[0]
                if self._ending:
                    return None
            control.idle(self._wake)

    def _fetch(self, pair: Communicator, control: Control, pull: Pull, message_bytes: int) -> None:
        self._backend.settle(self._into.device)
        for frame in wire.request(pull.spans):
            control.channel.send(frame, self._io_seconds)
        places = Places.of(self._into)
        messages = (places.message(span) for span in cut(pull.spans, message_bytes))
        conduct.move(pair, control, messages, pair.receive, moved=pull.landed)
        control.channel.send(bytes([Word.DONE]), self._io_seconds)
        pull.done = True


def _regions(memory: Memory) -> tuple[Region, ...]:
    return tuple(memory.regions(Span(0, memory.layout.nbytes)))
