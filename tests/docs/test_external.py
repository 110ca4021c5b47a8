"""How links to elsewhere are judged; whether they are alive is asked by ``make links``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.docs.external import Answer, Kind, ask, external, verdict


class Site(BaseHTTPRequestHandler):
    """Answers with the number that is asked for; the second one, where there is one, is for GET."""

    def do_HEAD(self) -> None:
        self._answer(0)

    def do_GET(self) -> None:
        self._answer(-1)

    def _answer(self, which: int) -> None:
        self.send_response(int(self.path.strip("/").split("/")[which]))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def site() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Site) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("200", Kind.FINE), ("405/200", Kind.FINE), ("404/200", Kind.FINE), ("404", Kind.DEAD), ("410", Kind.DEAD),
        ("405/404", Kind.DEAD), ("403", Kind.UNKNOWN), ("429", Kind.UNKNOWN), ("503", Kind.UNKNOWN),
    ],
)  # fmt: skip
def test_what_a_server_says_of_a_link(path: str, kind: Kind) -> None:
    with site() as url:
        assert ask(f"{url}/{path}").kind is kind


def test_nobody_there_is_no_answer() -> None:
    with site() as url:
        pass
    assert ask(f"{url}/200").kind is Kind.SILENT


def test_each_address_elsewhere_is_asked_once_and_none_of_this_machine() -> None:
    one, two = Path("one.md"), Path("two.md")
    found = external(
        {one: ("https://a.example/x#part", "two.md", "mailto:a@b"), two: ("https://a.example/x", "http://localhost:1")}
    )
    assert found == {"https://a.example/x": [one, two]}


def test_offline_nothing_is_said_and_online_a_server_that_is_not_there_is_a_dead_link() -> None:
    unknown = Answer(Kind.SILENT, "[Errno -2] Name or service not known")
    for other in (Answer(Kind.SILENT, "timed out"), Answer(Kind.DEAD, "HTTP 404")):
        dead, skipped = verdict({"a": unknown, "b": other})
        assert not dead
        assert "offline" in skipped
    answers = {"a": unknown, "b": Answer(Kind.SILENT, "timed out"), "c": Answer(Kind.FINE, "HTTP 200")}
    assert verdict(answers) == (["a"], "")
    assert verdict({"c": Answer(Kind.DEAD, "HTTP 404")}) == (["c"], "")
