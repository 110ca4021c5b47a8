"""The source's side: grants, and a line to each joiner that reads under one.

Decides who may read, when that ends, and how the cap is divided. The bytes themselves pass by it: the
library hands them out. A slow, dead or hostile caller costs one thread for seconds. It must
not know the event loop; ``transport.py`` calls it from threads. What is said is in ``line.py``.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import socket
import threading
import time
from contextlib import suppress
from typing import Final

from coldstart.admission import Doorkeeper, Hello, Verdict
from coldstart.channels import Channel
from coldstart.errors import TransportError
from coldstart.ports import Grant, Memory, TransportSettings
from coldstart_transfer_engine import line
from coldstart_transfer_engine.exports import Export, Exports
from coldstart_transfer_engine.line import Status, Ticket, Way

MAX_LINES: Final = 64
"""Callers at one time, admitted or not; of too many the oldest goes that has not been admitted, else the new one."""

_log = logging.getLogger(__name__)


class _Lent:
    """One grant while it lives. ``lines`` belongs to the lender's lock."""

    def __init__(self, ticket: Ticket, export: Export, seconds: float) -> None:
        self.ticket, self.export = ticket, export
        self.deadline = time.monotonic() + seconds
        self.lines: set[Channel] = set()

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())


class Lender:
    """Lends memory to the holders of tickets. Any thread may call.

    Args:
        settings: its cap is divided among all lines.
        host: the IPv4 address that peers reach.
    """

    def __init__(self, settings: TransportSettings, host: str, exports: Exports) -> None:
        self._cap, self._host, self._exports = settings.lend_bytes_per_second, host, exports
        self._machine = line.machine()
        self._doorkeeper = Doorkeeper(line.NAME, settings.signer)
        self._changed = threading.Condition()
        self._listener: socket.socket | None = None
        self._accepting: threading.Thread | None = None
        self._grants: dict[bytes, _Lent] = {}
        self._ending: list[_Lent] = []
        self._callers: set[socket.socket] = set()
        self._strangers: dict[socket.socket, None] = {}
        """Those of them that have not been admitted, the oldest first."""
        self._closed = False

    # ---------------------------------------------------------------------------------- grants

    def lend(self, grant: Grant, memory: Memory) -> Ticket:
        """Open ``memory`` to the holder of the returned ticket; a second call replaces the first."""
        export = self._exports.hold(memory)
        try:
            with self._changed:
                ticket = self._ticket(grant, export, self._listening())
                ended = [
                    key for key, lent in self._grants.items() if key == ticket.key or lent.seconds_left == 0
                ]
                for key in ended:
                    self._cut(key)
                self._grants[ticket.key] = _Lent(ticket, export, grant.seconds)
        except BaseException:
            self._exports.release(export)
            raise
        self._sweep()
        return ticket

    def end(self, transfer: str, seconds: float) -> bool:
        """End a grant, and wait until nobody reads under it; false if somebody does after ``seconds``."""
        with self._changed:
            self._cut(line.key_of(transfer))
            quiet = self._changed.wait_for(lambda: not self._read(self._ending, transfer), seconds)
        self._sweep()
        return quiet

    def reading(self, transfer: str) -> bool:
        """Whether a joiner has a line for the grant."""
        with self._changed:
            return self._read([*self._grants.values(), *self._ending], transfer)

    def close(self, seconds: float) -> None:
        """End everything; readers get ``seconds`` to end by themselves. Idempotent."""
        with self._changed:
            self._closed = True
            for key in list(self._grants):
                self._cut(key)
            self._changed.wait_for(lambda: not any(lent.lines for lent in self._ending), seconds)
            for lent in self._ending:  # whoever reads on does so without our engines
                for reader in lent.lines:
                    _shut(reader.sock)
                lent.lines.clear()
            for sock in self._callers:
                _shut(sock)
            if self._listener is not None:
                _shut(self._listener)
        if self._accepting is not None:
            self._accepting.join()
        with self._changed:
            self._changed.wait_for(lambda: not self._callers, seconds)
        self._sweep()

    @staticmethod
    def _read(lent: list[_Lent], transfer: str) -> bool:
        return any(each.lines for each in lent if each.ticket.transfer == transfer)

    def _ticket(self, grant: Grant, export: Export, port: int) -> Ticket:
        ways = tuple(
            Way(engine.route, engine.session, engine.data_port)
            for engine in export.engines
            if engine.route != "unknown"
        )
        return Ticket(
            host=self._host,
            port=port,
            secret=secrets.token_bytes(16),
            transfer=grant.transfer,
            machine=self._machine,
            process=os.getpid(),
            ways=ways,
        )

    def _cut(self, key: bytes) -> None:
        """Take the grant away and tell those who read under it. With the lock."""
        lent = self._grants.pop(key, None)
        if lent is not None:
            self._ending.append(lent)
            for reader in lent.lines:
                _tell(reader, line.notice(Status.REVOKED))

    def _sweep(self) -> None:
        """Give back the memory of ended grants that nobody reads any more."""
        with self._changed:
            over = [lent for lent in self._ending if not lent.lines]
            self._ending = [lent for lent in self._ending if lent.lines]
        for lent in over:
            self._exports.release(lent.export)

    def _share(self) -> None:
        """Divide the cap among all who read. With the lock."""
        if self._cap > 0:
            rate = self._rate()
            for lent in self._grants.values():
                for reader in lent.lines:
                    _tell(reader, line.notice(Status.OK, rate))

    def _rate(self, more: int = 0) -> float:
        """Of each, once there are so many ``more``."""
        return self._cap / max(1, sum(len(lent.lines) for lent in self._grants.values()) + more)

    # ---------------------------------------------------------------------------------- lines

    def _listening(self) -> int:
        """The port at which joiners call; listens from the first call on. With the lock."""
        if self._closed:
            raise TransportError("transfer engine transport is closed", reason="closed")
        if self._listener is None:
            try:
                self._listener = socket.create_server((self._host, 0), backlog=MAX_LINES)
            except OSError as error:
                raise TransportError(
                    f"transfer engine cannot listen on {self._host}: {error.strerror or error}", reason="unreachable"
                ) from error
            self._accepting = threading.Thread(
                target=self._accept, args=(self._listener,), name="coldstart-te-accept", daemon=True
            )
            self._accepting.start()
        port: int = self._listener.getsockname()[1]
        return port

    def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError as error:
                    if self._closed:
                        return
                    _log.warning("transfer engine source: cannot accept: %s", error)
                    time.sleep(0.1)
                    continue
                with self._changed:
                    if self._closed or not self._room():
                        sock.close()
                        continue
                    self._callers.add(sock)
                    self._strangers[sock] = None
                thread = threading.Thread(target=self._converse, args=(sock,), name="coldstart-te-line", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no more threads on this machine: the caller is turned away
                    self._finished(Channel(sock), None)

    def _room(self) -> bool:
        """Make room for one more caller, if there is none; false where all of them read. With the lock."""
        if len(self._callers) < MAX_LINES:
            return True
        oldest = next(iter(self._strangers), None)
        if oldest is None:
            return False
        del self._strangers[oldest]
        _shut(oldest)
        return True

    def _converse(self, sock: socket.socket) -> None:
        lent: _Lent | None = None
        channel = Channel(sock)
        try:
            line.tend(sock)
            until = time.monotonic() + line.HELLO_SECONDS
            lent, status = self._judged(line.read_hello(channel), channel, until)
            if lent is not None:
                _until_heard(sock)  # the joiner says nothing more: this is its end, or it is none of ours
            elif status is not None:
                channel.send(line.answer(status), line.HELLO_SECONDS)
        except OSError:
            pass  # it has gone, or was cut off
        except TransportError as error:
            _log.info("transfer engine source: a caller was left: %s", error)
        finally:
            self._finished(channel, lent)

    def _judged(self, hello: Hello | None, channel: Channel, until: float) -> tuple[_Lent | None, Status | None]:
        """The grant that the caller may read under, greeted as its reader; or the refusal, None if it has been said."""
        if hello is None:
            return None, Status.REFUSED
        with self._changed:
            lent = self._grants.get(hello.transfer)
        secret = lent.ticket.secret if lent is not None else None
        match self._doorkeeper.judge(channel, hello, secret, until):
            case Verdict.ADMITTED:
                admitted = lent is not None and self._admitted(lent, hello.transfer, channel)
                return (lent, None) if admitted else (None, Status.REFUSED)
            case Verdict.REFUSED:
                return None, Status.REFUSED
            case Verdict.UNPROVEN:
                return None, Status.UNPROVEN
            case Verdict.TURNED_AWAY:
                return None, None

    def _admitted(self, lent: _Lent, transfer: bytes, channel: Channel) -> bool:
        with self._changed:
            if self._grants.get(transfer) is not lent or lent.seconds_left == 0:
                return False
            greeting = line.answer(Status.OK, lent.seconds_left, self._rate(1), lent.export.table)
            if not channel.try_send(greeting):  # under the lock, so that no notice comes before it; there is room
                raise ConnectionAbortedError("no room for the answer")
            self._strangers.pop(channel.sock, None)
            lent.lines.add(channel)
            self._share()
            return True

    def _finished(self, channel: Channel, lent: _Lent | None) -> None:
        with self._changed:  # closed under the lock, so that nobody shuts a descriptor that is reused
            channel.sock.close()
            self._callers.discard(channel.sock)
            self._strangers.pop(channel.sock, None)
            if lent is not None:
                lent.lines.discard(channel)
                self._share()
            self._changed.notify_all()


def _until_heard(sock: socket.socket) -> None:
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    poll.poll()


def _tell(reader: Channel, words: bytes) -> None:
    """Send a notice; a joiner that has not read hundreds of them is cut off, and finds out by itself."""
    if not reader.try_send(words):
        _shut(reader.sock)


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
