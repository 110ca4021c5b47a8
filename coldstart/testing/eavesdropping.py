"""Somebody on the path of connections: writes down what each side says, and may change or cut it at a chosen byte.

Decides nothing about what is said. It serves one connection after the other, each until both sides have closed.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

import msgspec

_PIECE = 1 << 16
Side = Literal["joiner", "source"]
What = Literal["flip", "cut"]


class Meddling(msgspec.Struct, frozen=True):
    """From the byte ``at`` of what ``side`` says: one bit is turned, or nothing more comes through."""

    side: Side
    at: int
    what: What


class Path:
    """What has been said, of all connections."""

    def __init__(self, meddling: Meddling | None) -> None:
        self.said: dict[Side, bytearray] = {"joiner": bytearray(), "source": bytearray()}
        self._meddling = meddling

    def carry(self, side: Side, one: socket.socket, other: socket.socket) -> None:
        """All that ``one`` says, to its end."""
        with suppress(OSError):
            while data := one.recv(_PIECE):
                passed = self._passed(side, data)
                self.said[side] += data
                other.sendall(passed)
                if len(passed) < len(data):
                    break
        for sock in (one, other):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _passed(self, side: Side, data: bytes) -> bytes:
        meddling, start = self._meddling, len(self.said[side])
        if meddling is None or meddling.side != side or not start <= meddling.at < start + len(data):
            return data
        at = meddling.at - start
        if meddling.what == "cut":
            return data[:at]
        return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


@contextmanager
def path_to(host: str, port: int, meddling: Meddling | None = None) -> Iterator[tuple[int, Path]]:
    """A port of this machine from which connections are carried to ``host`` and ``port``, and what is said on them."""
    path = Path(meddling)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    joiner, _ = listener.accept()
                    with joiner, socket.create_connection((host, port)) as source:
                        back = threading.Thread(target=path.carry, args=("source", source, joiner))
                        back.start()
                        path.carry("joiner", joiner, source)
                        back.join()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1], path
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@contextmanager
def saying(data: bytes) -> Iterator[int]:
    """A port that says ``data`` to one caller, whatever it says."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve() -> None:
            with suppress(OSError):
                sock, _ = listener.accept()
                with sock:
                    sock.sendall(data)
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(_PIECE):
                        pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()
