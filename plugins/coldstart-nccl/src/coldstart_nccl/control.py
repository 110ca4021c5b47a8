"""The control connection while bytes move: a sign of life, and the place where ends are noticed.

Decides what counts as the end of a conversation: the peer's socket closes (its process has died),
it says why it leaves, our own side is stopped, or nothing has moved for too long. The library under
it notices none of these. One thread looks; any thread may stop it.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from contextlib import suppress

from coldstart.channels import Channel
from coldstart.errors import TransportError
from coldstart_nccl import wire
from coldstart_nccl.wire import Word


class _Gone(TransportError):
    """The peer has closed the connection without a word."""


class Control:
    """One connection; owned by the thread that talks.

    Args:
        peer: the other side in words.
        stall_seconds: nothing moving for so long ends it.
    """

    def __init__(self, sock: socket.socket, peer: str, stall_seconds: float) -> None:
        self.sock, self.channel = sock, Channel(sock)
        self.peer, self._stall_seconds = peer, stall_seconds
        self._lock = threading.Lock()
        self._stopped: TransportError | None = None
        self._closed = False
        self._moved = time.monotonic()
        self.peer_done = False
        """The peer has said that it has everything."""
        self.peer_ready = False
        """The peer's side of the pair is built, too."""
        self._peer_asks = False
        """The peer has begun a request."""

    def stop(self, error: TransportError, word: Word = Word.FAILED) -> None:
        """End the conversation soon and tell the peer why. Any thread; the first error counts."""
        with self._lock:
            if self._stopped is not None or self._closed:
                return
            self._stopped = error
            self._say(word)
            wire.shut(self.sock)

    def tell(self, word: Word) -> None:
        """Say why we leave, if there is room to say it in."""
        with self._lock:
            if not self._closed:
                self._say(word)

    def end(self) -> None:
        """Close the connection, which ends the peer's side, too, if it has not ended."""
        with self._lock:
            self._closed = True
            self.sock.close()

    def moved(self) -> None:
        """Something has moved: the stall clock starts anew."""
        self._moved = time.monotonic()

    def look(self, seconds: float) -> None:
        """Wait ``seconds``, then look for news.

        Raises:
            TransportError: the conversation has ended, for the reason that it gives.
        """
        if self._stopped is None:
            time.sleep(max(seconds, 0.0))  # shorter than poll can wait, and select fails above 1,024 descriptors
        if self._stopped is not None:
            raise self._stopped
        if not (self.peer_done or self._peer_asks):  # what comes then is for others to read
            self._hear()
        if time.monotonic() - self._moved > self._stall_seconds:
            raise TransportError(f"{self.peer} moved nothing for {self._stall_seconds:g} s", reason="timeout")

    def idle(self, wake: int) -> None:
        """Wait for a word of the peer, for our own end, or for a number written to the event descriptor ``wake``.

        Raises:
            TransportError: the conversation has ended, for the reason that it gives.
        """
        poll = select.poll()
        for descriptor in (self.sock.fileno(), wake):
            poll.register(descriptor, select.POLLIN)
        if not self.channel.waiting:
            poll.poll()
        with suppress(BlockingIOError):
            os.eventfd_read(wake)
        if self._stopped is not None:
            raise self._stopped
        self._hear()
        self.moved()

    def asked(self, deadline: float) -> bool:
        """Wait until the peer makes a request; false where it has gone instead, as is its right between two.

        Args:
            deadline: monotonic seconds at which the grant is over.

        Raises:
            TransportError: our own end, or the grant's.
        """
        poll = select.poll()
        poll.register(self.sock.fileno(), select.POLLIN)
        while not self._peer_asks:
            found = self.channel.waiting or poll.poll(max(deadline - time.monotonic(), 0.0) * 1000)
            if self._stopped is not None:
                raise self._stopped
            if not found:
                raise TransportError(f"{self.peer} asked for nothing before the end of its grant", reason="revoked")
            try:
                self._hear()
            except _Gone:
                return False
        self._peer_asks = self.peer_done = False
        self.moved()
        return True

    def explained(self, error: Exception) -> Exception:
        """What an error of the socket means; our own end comes before all that follows from it."""
        if self._stopped is not None:
            return self._stopped
        if isinstance(error, TimeoutError):
            return TransportError(f"{self.peer} said nothing for {self._stall_seconds:g} s", reason="timeout")
        if isinstance(error, OSError):
            return TransportError(f"{self.peer} closed the connection: {error.strerror or error}", reason="closed")
        return error

    def _say(self, word: Word) -> None:
        self.channel.try_send(bytes([word]))

    def _hear(self) -> None:
        try:
            said = self.channel.hear(1)
        except OSError as error:
            raise _Gone(f"{self.peer} is gone: {error.strerror or error}", reason="closed") from error
        if said is None:
            return
        if not said:
            raise _Gone(f"{self.peer} has closed the connection", reason="closed")
        if said[0] == Word.DONE:
            self.peer_done = True
            return
        if said[0] == Word.READY:
            self.peer_ready = True
            return
        if said[0] == Word.ASK:
            self._peer_asks = True
            return
        raise self.refusal(said[0])

    def refusal(self, word: int) -> TransportError:
        """The error that a word of the peer means."""
        if word not in wire.REASONS:
            return TransportError(f"{self.peer} broke the protocol: it said {word}", reason="protocol")
        reason, words = wire.REASONS[Word(word)]
        return TransportError(f"{self.peer} {words}", reason=reason)
