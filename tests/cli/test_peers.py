"""``coldstart peers``: shows who is there, starts nothing, believes nobody's text."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coldstart.bus.redis import RedisBus
from coldstart.config import Settings
from coldstart.ports import Advert
from coldstart.replica import join

pytestmark = pytest.mark.processes

OneLine = Callable[[str], str]
HEAD = ["shard", "worker", "state", "chunks", "slots", "transports", "host", "device", "gen", "age"]


def test_without_a_server_it_says_that_nobody_is_there_and_starts_none(coldstart: Any, directory: Path) -> None:
    done = coldstart("peers")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    assert done.stdout.startswith("nobody holds weights: ")
    assert str(directory) in done.stdout
    assert not directory.exists()
    assert json.loads(coldstart("peers", "--json").stdout) == {"shards": []}


def test_with_an_empty_store_it_says_so(coldstart: Any, store: str) -> None:
    for words in (("peers",), ("peers", "--redis", store)):
        done = coldstart(*words)
        assert (done.returncode, done.stderr) == (0, "")
        assert "no live advert under the namespace 'cs'" in done.stdout


async def test_it_shows_real_replicas(coldstart: Any, directory: Path, checkpoint: Path) -> None:
    settings = Settings(directory=str(directory), slots=3)
    async with (
        join(checkpoint, skeleton="tensors", worker="one", settings=settings) as one,
        join(checkpoint, skeleton="tensors", worker="two", settings=settings) as two,
    ):
        assert two.report.sources == ("one",)
        shown = await coldstart.beside("peers")
        told = await coldstart.beside("peers", "--json")

    assert (shown.returncode, shown.stderr, told.returncode) == (0, "", 0)
    head, *rows = shown.stdout.splitlines()
    assert head.split() == HEAD
    rest = ["complete", "2/2", "0/3", "tcp", "127.0.0.1", "cpu", "1"]
    assert [row.split()[:9] for row in rows] == [[one.report.shard[:8], name, *rest] for name in ("one", "two")]
    assert "\x1b" not in shown.stdout
    (shard,) = json.loads(told.stdout)["shards"]
    assert shard["shard"] == one.report.shard
    assert [worker["worker"] for worker in shard["workers"]] == ["one", "two"]
    assert {worker["state"] for worker in shard["workers"]} == {"complete"}


async def test_who_has_left_is_not_shown_any_more(coldstart: Any, directory: Path, checkpoint: Path) -> None:
    settings = Settings(directory=str(directory))
    async with join(checkpoint, skeleton="tensors", worker="one", settings=settings):
        async with join(checkpoint, skeleton="tensors", worker="two", settings=settings):
            (shard,) = json.loads((await coldstart.beside("peers", "--json")).stdout)["shards"]
            assert [worker["worker"] for worker in shard["workers"]] == ["one", "two"]
        (shard,) = json.loads((await coldstart.beside("peers", "--json")).stdout)["shards"]
    assert [worker["worker"] for worker in shard["workers"]] == ["one"]



@pytest.mark.parametrize("terminal", [True, False])
async def test_hostile_adverts_do_not_reach_the_terminal(coldstart: Any, store: str, terminal: bool) -> None:
    nasty = Advert("evil", "evil.1", "1", 3, "layout", 2, 1, 4, ("[/x]",), "\x1b[2J[/red]host", "cpu\n\n")
    bus = await RedisBus.open(store)
    await bus.advertise("a" * 32, nasty, 60)
    await bus.aclose()
    done = await coldstart.beside("peers", **({"FORCE_COLOR": "1"} if terminal else {}))
    assert (done.returncode, done.stderr) == (0, "")
    assert "partial" in done.stdout
    assert "1/4" in done.stdout
    assert "[2J" not in done.stdout
    assert "[/" not in done.stdout
    told = json.loads((await coldstart.beside("peers", "--json")).stdout)
    assert told["shards"][0]["workers"][0]["host"] == nasty.host


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("http://example.org", 2, "has the scheme 'http'"),
        ("redis://:p@ss@word@[::1", 2, "malformed"),
        ("none", 2, "coordination is switched off"),
    ],
)
def test_a_bad_url_is_one_line(coldstart: Any, one_line: OneLine, url: str, code: int, said: str) -> None:
    done = coldstart("peers", "--redis", url)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in one_line(done.stderr)
    assert "p@ss" not in done.stderr


def test_a_refused_port_and_a_silent_server_are_one_line(
    coldstart: Any, one_line: OneLine, refused: str, silent: str
) -> None:
    done = coldstart("peers", "--redis", refused)
    assert done.returncode == 7
    assert f"{refused} cannot be reached" in one_line(done.stderr)
    done = coldstart("peers", "--redis", silent)
    assert done.returncode == 7
    assert silent in one_line(done.stderr)


def test_a_directory_open_to_others_is_not_believed(coldstart: Any, one_line: OneLine, directory: Path) -> None:
    directory.mkdir()
    directory.chmod(0o755)
    done = coldstart("peers")
    assert done.returncode == 2
    assert f"chmod 700 {directory}" in one_line(done.stderr)
