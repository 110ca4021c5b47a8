"""``coldstart trace`` as an operator uses it: with a real store, real cold starts, and journals by strangers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coldstart.bus.redis import RedisBus
from coldstart.chronicle.lines import Detoured, Ended, Entered, Header, pack
from coldstart.config import Settings
from coldstart.replica import join

pytestmark = pytest.mark.processes

OneLine = Callable[[str], str]


def test_without_a_journal_it_says_so_and_starts_no_store(
    coldstart: Any, directory: Path, one_line: OneLine
) -> None:
    done = coldstart("trace")
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    assert str(directory) in done.stdout
    assert not directory.exists()
    done = coldstart("trace", "--last")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--redis" in one_line(done.stderr)


async def test_it_shows_what_has_happened_after_everybody_has_left(
    coldstart: Any, store: str, checkpoint: Path, one_line: OneLine
) -> None:
    """The last line of a worker that ends at once is there, too."""
    settings = Settings(redis=store)
    async with (
        join(checkpoint, skeleton="tensors", worker="one", settings=settings),
        join(checkpoint, skeleton="tensors", worker="two", settings=settings) as two,
    ):
        report = two.report
    listed = await coldstart.beside("trace", "--list")
    assert (listed.returncode, listed.stderr) == (0, "")
    head, first, second = listed.stdout.splitlines()
    assert head.split()[:3] == ["began", "worker", "cold"]
    assert first.split()[2] == "one"
    assert second.split()[2] == "two"
    assert {"gone", "peer", "one"} <= set(second.split())

    (told,) = json.loads((await coldstart.beside("trace", "--last", "--json")).stdout)["starts"]
    assert (told["path"], told["phase"], told["detours"]) == ("peer", "GONE", [])
    start = told["start"]
    assert start["worker"] == "two"
    assert start["seconds"] == pytest.approx(report.seconds, abs=0.01)
    assert start["sources"] == {"one": report.bytes_peer}
    assert start["lost"] == 0

    shown = await coldstart.beside("trace", start["start"][:6])
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("two served in ")
    assert "pull from one" in shown.stdout
    assert "one lends" in shown.stdout
    assert "\x1b" not in shown.stdout
    done = await coldstart.beside("trace", "nobody")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--list" in one_line(done.stderr)


@pytest.mark.parametrize(("words", "terminal"), [(("--list",), False), (("evil",), True)])
async def test_a_hostile_journal_does_not_reach_the_terminal(
    coldstart: Any, store: str, words: tuple[str, ...], terminal: bool
) -> None:
    evil = "\x1b[2J[/red]\nnews"
    header = Header(start="c0ffee", worker="evil", shard="a" * 32, model=evil, host=evil, group=evil)
    lines = [
        Entered(at=0.0, phase=evil, state=evil, source=evil),
        Detoured(at=0.1, reason=evil),
        Ended(at=1e9, phase=evil, total=2**62, origins={evil: 2**62}, reason=evil),
    ]
    bus = await RedisBus.open(store)
    await bus.record("a" * 32, [b"\xff", b"{}", *pack(header, list(enumerate(lines, 1)), 1e9)])
    await bus.aclose()
    done = await coldstart.beside("trace", *words, **({"FORCE_COLOR": "1"} if terminal else {}))
    assert (done.returncode, done.stderr) == (0, "")
    assert "evil" in done.stdout
    assert ("\x1b" in done.stdout) is terminal
    assert "\x1b[2J" not in done.stdout
    assert "\nnews" not in done.stdout


def test_a_store_that_is_not_there_is_one_line(coldstart: Any, one_line: OneLine, refused: str) -> None:
    done = coldstart("trace", "--redis", refused)
    assert done.returncode == 7
    assert f"{refused} cannot be reached" in one_line(done.stderr)
    done = coldstart("trace", "x", "--last", "--redis", refused)
    assert done.returncode == 2
    assert "exclude each other" in one_line(done.stderr)
