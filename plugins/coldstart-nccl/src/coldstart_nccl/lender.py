"""The source's side: grants, and one thread per joiner that moves lent memory.

Decides who is admitted, what a joiner may ask for, and when a grant has really ended. A slow, dead
or hostile joiner costs its own thread, its own pair, and nothing else. It must not know the event
loop (``transport.py``) nor any library (``communicator.py``).
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from coldstart.admission import Doorkeeper, Hello, Verdict
from coldstart.driver import apart_from_captures
from coldstart.errors import TransportError
from coldstart.layout import Span
from coldstart.ports import Grant, Memory, TransportSettings
from coldstart_nccl import conduct, hush, wire
from coldstart_nccl.communicator import SENDER, Backend, Communicator, Message
from coldstart_nccl.control import Control
from coldstart_nccl.hush import Hush
from coldstart_nccl.listener import Listener
from coldstart_nccl.pacing import Pace
from coldstart_nccl.schedule import Places, cut, fits
from coldstart_nccl.wire import Answer, Ticket, Word

MAX_PAIRS: Final = 2
"""Per grant: a pull, and one that has not yet noticed its end. Each holds memory of the device."""
HELLO_SECONDS: Final = 2.0
"""A caller that has not shown a secret, or proven a key, within this is a stranger, and left."""

_log = logging.getLogger(__name__)


class _Outside(TransportError):
    """The joiner has asked for what is not there."""


class _Lent:
    """One grant; ``talks`` belongs to the lender's lock."""

    def __init__(self, ticket: Ticket, memory: Memory, seconds: float) -> None:
        self.ticket, self.memory = ticket, memory
        self.deadline = time.monotonic() + seconds
        self.ended = False
        self.talks: dict[Control, Hush] = {}

    @property
    def open(self) -> bool:
        return not self.ended and time.monotonic() < self.deadline


class Lender:
    """Lends memory to the holders of tickets. Any thread may call; only ``lend`` and the waits take time.

    Args:
        ctas: cap on thread blocks that the operator asked for, 0 for none.
    """

    def __init__(self, backend: Backend, settings: TransportSettings, ctas: int) -> None:
        self._backend, self._settings, self._ctas = backend, settings, ctas
        self._pace = Pace(settings.lend_bytes_per_second)
        self._doorkeeper = Doorkeeper(backend.name, settings.signer)
        self._changed = threading.Condition()
        self._opening = threading.Lock()
        self._listener: Listener | None = None
        self._grants: dict[bytes, _Lent] = {}
        self._ending: set[_Lent] = set()
        self._callers = 0
        self._closed = False
        self.sent = 0
        """Bytes that the library says have been moved."""

    def lend(self, grant: Grant, memory: Memory) -> Ticket:
        """Open ``memory`` to the holder of the returned ticket; a second call replaces the first."""
        hush.check(memory.device)
        with self._opening:  # a lock of its own: resolving the host may take long
            if self._closed:
                raise closed(self._backend.name)
            if self._listener is None:
                self._listener = Listener(self._settings.host, self._called)
            host, port = self._listener.address
        ticket = Ticket(host=host, port=port, secret=secrets.token_bytes(16), transfer=grant.transfer)
        with self._changed:
            if self._closed:
                raise closed(self._backend.name)
            for key in [key for key, lent in self._grants.items() if key == ticket.key or not lent.open]:
                self._cut(self._grants.pop(key))
            self._grants[ticket.key] = _Lent(ticket, memory, grant.seconds)
        return ticket

    def end(self, transfer: str) -> bool:
        """End a grant at once; true if nothing reads for it already."""
        with self._changed:
            for key in [key for key, lent in self._grants.items() if lent.ticket.transfer == transfer]:
                self._cut(self._grants.pop(key))
            return self._quiet(transfer)

    def reading(self, transfer: str) -> bool:
        """Whether a joiner is connected for the grant."""
        with self._changed:
            return any(lent.talks for lent in self._grants.values() if lent.ticket.transfer == transfer)

    def wait_quiet(self, transfer: str, seconds: float) -> bool:
        """Wait until nothing reads for an ended grant; false if something still does after ``seconds``."""
        with self._changed:
            return self._changed.wait_for(lambda: self._quiet(transfer), seconds)

    def close(self, seconds: float) -> None:
        """End everything and wait for all threads, at most ``seconds``."""
        with self._changed:
            self._closed = True
            while self._grants:
                self._cut(self._grants.popitem()[1])
        with self._opening:
            if self._listener is not None:
                self._listener.close()
                self._listener = None
        with self._changed:
            if not self._changed.wait_for(lambda: self._callers == 0, seconds):
                _log.warning("%s source: %d threads left behind", self._backend.name, self._callers)

    def _cut(self, lent: _Lent) -> None:
        lent.ended = True
        if lent.talks:
            self._ending.add(lent)
        for control, calm in lent.talks.items():
            calm.expect()
            control.stop(_ended(self._backend.name), Word.REVOKED)

    def _quiet(self, transfer: str) -> bool:
        return not any(lent.ticket.transfer == transfer for lent in self._ending)

    # ------------------------------------------------------------------- one thread per caller

    def _called(self, sock: socket.socket) -> None:
        with self._changed:
            self._callers += 1
        pair: Communicator | None = None
        try:
            with apart_from_captures(self._backend.kind):
                with self._admitted(sock) as admitted:
                    if admitted is not None:
                        pair = self._talk(*admitted)
                if pair is not None:
                    pair.close()
        except OSError:
            pass  # the joiner has gone, or is too slow; it finds out by itself
        except Exception:
            _log.exception("%s source: a conversation broke", self._backend.name)
        finally:
            with self._changed:
                self._callers -= 1
                self._changed.notify_all()

    @contextmanager
    def _admitted(self, sock: socket.socket) -> Iterator[tuple[_Lent, Control, Hush] | None]:
        """The grant that the caller may read under; it counts as read for as long as the block lasts."""
        control = Control(sock, "the joiner", self._settings.io_seconds)
        lent: _Lent | None = None
        try:
            until = time.monotonic() + HELLO_SECONDS
            hello = wire.read_hello(control.channel, HELLO_SECONDS)
            lent, word = self._judged(hello, control, until)
            self._met(sock)
            if lent is None:
                if word is not None:
                    control.channel.send(Answer(word).encode(), HELLO_SECONDS)
                yield None
            else:
                yield lent, control, lent.talks[control]
        finally:
            self._met(sock)
            control.end()
            if lent is not None:
                self._left(lent, control)

    def _met(self, sock: socket.socket) -> None:
        listener = self._listener
        if listener is not None:
            listener.known(sock)

    def _judged(self, hello: Hello | None, control: Control, until: float) -> tuple[_Lent | None, Word | None]:
        """The grant that the caller has shown or proven to know; or the refusal, None if it has been said."""
        if hello is None:
            return None, Word.REFUSED
        with self._changed:
            lent = self._grants.get(hello.transfer)
        secret = lent.ticket.secret if lent is not None else None
        match self._doorkeeper.judge(control.channel, hello, secret, until):
            case Verdict.ADMITTED:
                return self._recognised(lent, hello.transfer, control)
            case Verdict.REFUSED:
                return None, Word.REFUSED
            case Verdict.UNPROVEN:
                return None, Word.UNPROVEN
            case Verdict.TURNED_AWAY:
                return None, None

    def _recognised(self, lent: _Lent | None, transfer: bytes, control: Control) -> tuple[_Lent | None, Word]:
        with self._changed:
            if lent is None or self._grants.get(transfer) is not lent:  # it was replaced meanwhile
                return None, Word.REFUSED
            if not lent.open:
                return None, Word.REVOKED
            if len(lent.talks) >= MAX_PAIRS:
                return None, Word.BUSY
            lent.talks[control] = Hush(lent.memory.device)
            return lent, Word.OK

    def _left(self, lent: _Lent, control: Control) -> None:
        with self._changed:
            lent.talks.pop(control).reached()
            if not lent.talks:
                self._ending.discard(lent)
            self._changed.notify_all()

    # ------------------------------------------------------------------- one conversation

    def _talk(self, lent: _Lent, control: Control, calm: Hush) -> Communicator | None:
        """Serve pull after pull; the pair they went over if that is to be closed, None if it was aborted."""
        pair: Communicator | None = None
        try:
            places = Places.of(lent.memory)
            answer = self._answer(lent.memory.device, places.scattered)
            control.channel.send(answer.encode(), self._settings.io_seconds)
            size = min(answer.message_bytes, lent.memory.layout.nbytes)
            pair = self._backend.connect(
                SENDER, answer.invitation, lent.memory.device, largest=size, ctas=answer.ctas
            )
            conduct.set_up(pair, control)
            control.tell(Word.READY)
            while control.asked(lent.deadline):
                self._send(lent, control, pair, places, answer.message_bytes)
        except Exception as error:
            failure = control.explained(error)
            _log.log(
                logging.INFO if isinstance(failure, TransportError) else logging.ERROR,
                "%s source: transfer %s ended early: %s",
                self._backend.name,
                lent.ticket.transfer,
                failure,
            )
            outside = Word.BAD_REQUEST if isinstance(failure, _Outside) else Word.FAILED
            control.tell(outside if lent.open else Word.REVOKED)
            control.end()
            if pair is not None:
                calm.expect()
                pair.abort()
            return None
        return pair

    def _answer(self, device: str, scattered: bool) -> Answer:
        hush.check(device)
        message_bytes = self._pace.message_bytes(self._backend.message_bytes(scattered))
        return Answer(Word.OK, message_bytes, self._pace.ctas(self._ctas), self._backend.invitation())

    def _send(
        self, lent: _Lent, control: Control, pair: Communicator, places: Places, message_bytes: int
    ) -> None:
        """Serve one pull."""
        spans = wire.read_request(control.channel, self._settings.io_seconds)
        if spans is None or not fits(spans, lent.memory.layout):
            raise _Outside("the joiner asked for bytes outside the layout", reason="protocol")
        self._backend.settle(lent.memory.device)  # the weights may have been written on any stream
        messages: Iterator[Message] = (places.message(span) for span in cut(spans, message_bytes))

        def may_go(count: int, now: float) -> float:
            if not lent.open:
                raise _ended(self._backend.name)
            return self._pace.reserve(count, now)

        conduct.move(pair, control, messages, pair.send, may_go=may_go, moved=self._count)
        conduct.wait_for_peer(control)

    def _count(self, span: Span) -> None:
        with self._changed:
            self.sent += span.length


def closed(name: str) -> TransportError:
    return TransportError(f"{name} transport is closed", reason="closed")


def _ended(name: str) -> TransportError:
    return TransportError(f"the {name} grant has ended", reason="revoked")
