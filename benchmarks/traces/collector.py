"""An OTLP receiver over HTTP, for as long as a block: what a collector would get, as values.

Decides nothing about spans; it keeps them in the order in which they came.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmarks.traces.spans import Span, spans_of


class Collected:
    """What has come so far; safe to be written to by many threads."""

    def __init__(self) -> None:
        self.url = ""
        self._spans: list[Span] = []

    def take(self, body: bytes) -> None:
        """One export."""
        self._spans += spans_of(body)

    @property
    def spans(self) -> tuple[Span, ...]:
        return tuple(self._spans)

    def trace(self, worker: str) -> tuple[Span, ...]:
        """All spans of the last cold start of ``worker``; empty before its root has come."""
        roots = [span for span in self._spans if _is_root(span, worker)]
        return tuple(span for span in self._spans if span.trace == roots[-1].trace) if roots else ()

    def root(self, worker: str) -> Span:
        """The root of that cold start; raises LookupError before it has come."""
        for span in reversed(self._spans):
            if _is_root(span, worker):
                return span
        raise LookupError(f"no cold start of {worker!r} has come")


def _is_root(span: Span, worker: str) -> bool:
    return span.name == "coldstart" and span.attributes.get("coldstart.worker") == worker


@contextmanager
def collector() -> Iterator[Collected]:
    """A receiver at ``Collected.url``, which is what ``OTEL_EXPORTER_OTLP_ENDPOINT`` takes."""
    collected = Collected()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            known = self.path == "/v1/traces"
            if known:
                collected.take(body)
            self.send_response(200 if known else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collected.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield collected
        finally:
            server.shutdown()
            thread.join()
