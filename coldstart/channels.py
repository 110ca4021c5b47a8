"""A connection on which two workers talk beside the bytes that a library moves for them.

Decides how frames are sent and received over one socket, within deadlines or without waiting at all, and that once
both sides have proven themselves (``admission.py``) all of it is authenticated (``records.py``). Before that, and
in fleets without keys, frames travel as they are. It must not know what is said, nor who may say it.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Final

from coldstart.proofs import Side
from coldstart.records import Reader, Writer

_AT_ONCE: Final = 0.001


class Channel:
    """One connected socket, which stays its owner's to close. One thread receives; any may send.

    It makes the socket non-blocking; how long each call waits is said with the call.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.settimeout(_AT_ONCE)
        self._sending = threading.Lock()
        self._writer: Writer | None = None
        self._reader: Reader | None = None
        self._heard = bytearray()

    def authenticate(self, secret: bytes, side: Side, peer: str) -> None:
        """From now on what is said, by us as ``side``, and heard, counts only as authentic records.

        On both sides after the same byte, in the thread that receives. ``peer`` is the other side in words.
        """
        with self._sending:
            self._writer = Writer(secret, side)
        self._reader = Reader(secret, "source" if side == "joiner" else "joiner", peer)

    @property
    def waiting(self) -> bool:
        """Whether :meth:`hear` has something that the socket has given already."""
        return bool(self._heard)

    def send(self, data: bytes, seconds: float) -> None:
        """Say ``data``, which must be taken within ``seconds``. Raises OSError."""
        with self._sending:
            framed = data if self._writer is None else self._writer.records(data)
            self.sock.settimeout(max(seconds, _AT_ONCE))
            self.sock.sendall(framed)

    def try_send(self, data: bytes) -> bool:
        """Say ``data`` without waiting for room, or for others who are saying something; false: not all was said.

        Nothing that is said after that is understood where there are keys.
        """
        if not self._sending.acquire(blocking=False):
            return False
        try:
            framed = data if self._writer is None else self._writer.records(data)
            return os.write(self.sock.fileno(), framed) == len(framed)
        except OSError:
            return False
        finally:
            self._sending.release()

    def receive(self, size: int, seconds: float) -> bytes:
        """Exactly ``size`` bytes within ``seconds``; a peer that sends a byte now and then gets no more time.

        Raises:
            OSError: too late, or the peer has ended.
            TransportError: something that is not authentic.
        """
        deadline = time.monotonic() + seconds
        while len(self._heard) < size:
            self.sock.settimeout(max(deadline - time.monotonic(), _AT_ONCE))
            more = self.sock.recv(self._wanted(size - len(self._heard)))
            if not more:
                raise ConnectionResetError("closed by the peer")
            self._take(more)
        return self._given(size)

    def hear(self, most: int) -> bytes | None:
        """What there is, ``most`` bytes of it; None: nothing yet; empty: the peer has ended. Raises as :meth:`receive`.
        """
        while not self._heard:
            try:
                more = os.read(self.sock.fileno(), self._wanted(most))
            except BlockingIOError:
                return None
            if not more:
                return b""
            self._take(more)
        return self._given(most)

    def _wanted(self, size: int) -> int:
        return size if self._reader is None else self._reader.wanted

    def _take(self, data: bytes) -> None:
        self._heard += data if self._reader is None else self._reader.feed(data)

    def _given(self, most: int) -> bytes:
        given = bytes(self._heard[:most])
        del self._heard[:most]
        return given
