"""A gateway before the real server: it keeps the log of requests, and does to some of them what networks do."""

from __future__ import annotations

import http.client
import math
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, NamedTuple

BLOCK = 64 * 1024
RESET = struct.pack("ii", 1, 0)
"""Closing does not wait for what was sent, and says so to the other side."""

Fault = Literal["", "slow down", "too many", "failing", "expired", "skewed", "moved", "broken", "reset", "silent"]
"""Statuses with S3's own words (:data:`WORDS`); an answer that ends after half of its body, by an ordinary end of the
connection or by its reset; no answer until the client hangs up."""

WORDS: dict[Fault, tuple[int, str, str]] = {
    "slow down": (503, "SlowDown", "Please reduce your request rate."),
    "too many": (429, "TooManyRequests", "Please reduce your request rate."),
    "failing": (500, "InternalError", "We encountered an internal error. Please try again."),
    "expired": (400, "ExpiredToken", "The provided token has expired."),
    "skewed": (403, "RequestTimeTooSkewed", "The difference between the request time and the server's is too large."),
    "moved": (301, "PermanentRedirect", "The bucket you are attempting to access must be addressed using another."),
}


class Seen(NamedTuple):
    """One answered request; ``first`` and ``last`` are the bytes asked for, both included, or -1 for all.

    ``condition`` is the ETag that the object had to have.
    """

    method: str
    key: str
    first: int
    last: int
    status: int
    sent: int
    condition: str = ""


class Gateway(ThreadingHTTPServer):
    """Forwards to the port ``behind``; ``misbehave`` names the fault for a request, by its method and key."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, behind: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = behind
        self.seen: list[Seen] = []
        self.misbehave: Callable[[str, str], Fault] = lambda method, key: ""
        self.open = 0
        self.changed = threading.Condition()
        self.before: Callable[[str, int], object] = lambda key, first: None
        """Called before an answer, with the first byte that is asked for (-1: all); may wait. Who has hung up by then
        gets no answer."""
        self.rate = math.inf
        """Bytes per second of all answers together."""
        self._line = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def pace(self, nbytes: int) -> None:
        """Take the time of ``nbytes``."""
        if self.rate < math.inf:
            with self._line:
                time.sleep(nbytes / self.rate)

    def note(self, seen: Seen) -> None:
        with self.changed:
            self.seen.append(seen)
            self.changed.notify_all()

    def count(self, change: int) -> None:
        """Connections that clients hold open at this moment."""
        with self.changed:
            self.open += change
            self.changed.notify_all()

    def wait_for(self, met: Callable[[], bool], seconds: float = 10) -> bool:
        with self.changed:
            return self.changed.wait_for(met, seconds)

    def read(self, key: str, start: int = 0) -> list[tuple[int, int]]:
        """The ranges of ``key`` that were given out, from the byte ``start`` on, in order; ends are exclusive."""
        given = [each for each in self.seen if each.method == "GET" and each.key == key and each.status in (200, 206)]
        return sorted((each.first, each.last + 1) for each in given if each.first >= start)

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave are what is tested."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gateway

    def setup(self) -> None:
        super().setup()
        self.server.count(1)

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()
        self.server.count(-1)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        key = self.path.partition("?")[0]
        fault = self.server.misbehave(self.command, key)
        if fault == "silent":
            self.server.note(self._seen(key, 0, 0))
            self.connection.settimeout(30)
            with suppress(OSError):
                self.connection.recv(1)
            self.close_connection = True
            return
        self.server.before(key, self._seen(key, 0, 0).first)
        if self._left():
            self.close_connection = True
            return
        if fault in WORDS:
            status, code, message = WORDS[fault]
            body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)
            self.server.note(self._seen(key, status, len(body)))
            return
        self._forward(key, fault)

    do_HEAD = do_GET

    def _left(self) -> bool:
        """Whether the client has hung up: there is something to be read, and it is nothing."""
        return bool(select.select([self.connection], [], [], 0)[0]) and not self.connection.recv(1, socket.MSG_PEEK)

    def _forward(self, key: str, fault: Fault) -> None:
        behind = http.client.HTTPConnection("127.0.0.1", self.server.behind)
        try:
            behind.request(self.command, self.path, headers=dict(self.headers.items()))
            answer = behind.getresponse()
            self.send_response_only(answer.status, answer.reason)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "transfer-encoding"):
                    self.send_header(name, value)
            whole = int(answer.getheader("Content-Length") or 0)
            if self.command == "GET" and answer.getheader("Content-Length") is None:
                body = answer.read()
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                self.server.note(self._seen(key, answer.status, len(body)))
                return
            self.end_headers()
            cut = fault in ("broken", "reset")
            left, sent = (whole // 2 if cut else whole), 0
            while self.command == "GET" and left and (block := answer.read(min(BLOCK, left))):
                self.server.pace(len(block))
                self.wfile.write(block)
                sent, left = sent + len(block), left - len(block)
            self.close_connection = cut
            if fault == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.server.note(self._seen(key, 0 if cut else answer.status, sent))
        finally:
            behind.close()

    def _seen(self, key: str, status: int, sent: int) -> Seen:
        first, _, last = self.headers.get("Range", "bytes=-1-").removeprefix("bytes=").rpartition("-")
        condition = self.headers.get("If-Match", "")
        return Seen(self.command, key, int(first or -1), int(last or -1), status, sent, condition)


@contextmanager
def gateway(behind: int) -> Iterator[Gateway]:
    """A gateway, for the block."""
    with Gateway(behind) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield made
        finally:
            made.shutdown()
            thread.join()
