"""``coldstart watch`` and ``journal`` over a real store that vanishes and comes back, and real replicas."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from coldstart.bus.embedded import embedded
from coldstart.config import Settings
from coldstart.replica import join

pytestmark = pytest.mark.processes

OneLine = Callable[[str], str]
SECONDS = 40.0


class Told:
    """What a command that goes on says, line by line, within a deadline."""

    def __init__(self, coldstart: Any, *words: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            coldstart.command(words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**coldstart.environment, "PYTHONUNBUFFERED": "1", **environment},
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def until(self, wanted: Callable[[str], bool]) -> str:
        while True:
            line = self._lines.get(timeout=SECONDS)
            if wanted(line):
                return line

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=SECONDS)
        assert self.process.returncode in (-15, 143)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)


@pytest.fixture
def told(coldstart: Any) -> Iterator[Callable[..., Told]]:
    running: list[Told] = []

    def tell(*words: str, **environment: str) -> Told:
        running.append(Told(coldstart, *words, **environment))
        return running[-1]

    yield tell
    for each in running:
        each.end()
        if each.process.stdout is not None:
            each.process.stdout.close()


def test_a_store_that_vanishes_is_waited_for(
    told: Callable[..., Told], directory: Path, coldstart: Any, one_line: OneLine
) -> None:
    with start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(embedded(directory)):
            watch, follow = told("watch", "--json", "--every", "0.2"), told("journal", "--follow")
            drawn = told("watch", "--every", "0.2", FORCE_COLOR="1")
            watch.until(lambda line: json.loads(line).get("weights") == [])
        lost = json.loads(watch.until(lambda line: "lost" in json.loads(line)))
        assert lost["lost"]
        follow.until(lambda line: "the store is lost, and waited for" in line)
        assert "\x1b[" in drawn.until(lambda line: "the store is lost for" in line), "drawn in place"
        once = coldstart("watch", "--once")
        assert once.returncode == 7
        one_line(once.stderr)
        nothing = coldstart("report")
        assert nothing.returncode == 1
        assert "no cold start is known of the last 1 d" in one_line(nothing.stderr)
        with portal.wrap_async_context_manager(embedded(directory)):
            watch.until(lambda line: json.loads(line).get("weights") == [])
            follow.until(lambda line: "the store is back" in line)


async def test_they_show_real_replicas(coldstart: Any, directory: Path, checkpoint: Path, one_line: OneLine) -> None:
    settings = Settings(directory=str(directory))
    async with (
        join(checkpoint, skeleton="tensors", worker="one", settings=settings),
        join(checkpoint, skeleton="tensors", worker="two", settings=settings) as two,
    ):
        seen = await coldstart.beside("watch", "--once")
        picture = json.loads((await coldstart.beside("watch", "--once", "--json")).stdout)
        journal = await coldstart.beside("journal", "--worker", "two", "--json")
        unknown = await coldstart.beside("journal", "--worker", "six")
        fleet = directory.parent / "fleet.html"
        written = await coldstart.beside("report", "--out", str(fleet), "--last", "1h")
        nowhere = await coldstart.beside("report", "--out", str(fleet / "x.html"))
    assert (seen.returncode, seen.stderr) == (0, "")
    assert f"  {two.report.model}: 2 holders; 0 of 4 slots in use" in seen.stdout
    assert "\x1b" not in seen.stdout
    (weights,) = picture["weights"]
    assert (weights["complete"], weights["slots"], picture["fallbacks"]) == (2, 4, [])
    items = [json.loads(line) for line in journal.stdout.splitlines()]
    assert [item["kind"] for item in items if item["kind"].isupper()] == [
        "DISCOVER", "HANDSHAKE", "TRANSFER", "VERIFY", "SERVE",
    ]  # fmt: skip
    assert any(item["kind"] == "pulled" and "from one at" in item["words"] for item in items)
    assert (written.returncode, written.stderr) == (0, "")
    assert written.stdout.startswith(f"{fleet}: 2 cold starts, ")
    page = fleet.read_text()
    assert page.count('class="row serving"') == 2
    assert "Fallbacks and failures</h2>\n<p>None" in page
    assert nowhere.returncode == 2
    assert "cannot be written: Not a directory" in one_line(nowhere.stderr)
    assert [each.name for each in directory.parent.iterdir() if "fleet" in each.name] == ["fleet.html"]
    assert unknown.returncode == 2
    assert "it knows one, two" in one_line(unknown.stderr)
