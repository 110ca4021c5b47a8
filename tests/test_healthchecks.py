"""Health checks of real replicas, over ASGI as an application has it, and on a port of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import coldstart
from coldstart import config
from coldstart.asgi import App, HealthRoutes, Message
from coldstart.config import Settings
from coldstart.errors import ConfigError
from coldstart.health import Health
from coldstart.health_port import listening
from coldstart.healthchecks import Asked, HealthChecks
from tests.embed.asking import Answered, ask_http

Write = Callable[..., Path]
SECONDS = 20.0


@pytest.fixture
def checkpoint(tmp_path: Path, write_checkpoint: Write) -> Path:
    return write_checkpoint(tmp_path / "model", mib=1)


@pytest.fixture
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return config.load({"directory": str(tmp_path_factory.mktemp("v")), "drain": 2.0}, environ={})


async def over_asgi(
    app: App, method: str, path: str, client: tuple[str, int] | None = ("127.0.0.1", 1), *fields: tuple[bytes, bytes]
) -> Answered:
    """One request without a server."""
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "query_string": b""}
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app({**scope, "client": client, "headers": list(fields)}, receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])  # type: ignore[misc]
    return Answered(int(str(sent[0]["status"])), body)


def told(answered: Answered) -> Health:
    return msgspec.json.decode(answered.body, type=Health)


def hello() -> Starlette:
    async def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    return Starlette(routes=[Route("/", home)])


async def test_it_lives_at_once_is_ready_when_it_serves_and_not_when_it_ends(
    settings: Settings, checkpoint: Path
) -> None:
    checks = HealthChecks()
    app = HealthRoutes(checks=checks)
    assert (await over_asgi(app, "GET", "/healthz")).status == 200
    assert (await over_asgi(app, "GET", "/readyz")).status == 503
    async with coldstart.join(checkpoint, skeleton="tensors", settings=settings, wait=False) as replica:
        with checks.following(replica):
            before = await over_asgi(app, "GET", "/readyz")
            assert (before.status, told(before).phase, replica.verified) == (503, coldstart.Phase.IDLE, False)
            report = await replica.ready()
            serving = await over_asgi(app, "GET", "/readyz")
            assert serving.status == 200
            assert (told(serving).ready, told(serving).path) == (True, "storage")
            assert told(serving).bytes_done == told(serving).bytes_total == report.bytes_total
            await checks.drain()
            after = await over_asgi(app, "GET", "/readyz")
            assert (after.status, told(after).draining, replica.verified) == (503, True, True)
            assert (await over_asgi(app, "GET", "/healthz")).status == 200
    assert (await over_asgi(app, "GET", "/readyz")).status == 503


async def test_a_host_that_drains_the_replica_itself_is_not_ready_from_that_moment(
    settings: Settings, checkpoint: Path
) -> None:
    async with coldstart.join(checkpoint, skeleton="tensors", settings=settings) as replica:
        assert replica.health.ready
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(replica.drain)
            await anyio.lowlevel.checkpoint()
            assert (replica.health.ready, replica.health.draining) == (False, True)


async def test_weights_that_are_lent_no_more_by_an_operators_wish_still_serve(
    settings: Settings, checkpoint: Path
) -> None:
    """Lending and serving are two things: who drains the one from afar must not take the other from its users."""
    async with coldstart.join(checkpoint, skeleton="tensors", settings=settings) as replica:
        wired = replica._session.wired
        assert wired is not None
        wired.node.drain()  # as a letter over the bus does
        with anyio.fail_after(SECONDS):
            await replica._session.gone.wait()
        assert (replica.health.phase, replica.health.ready) == (coldstart.Phase.GONE, True)


async def test_a_failed_cold_start_says_why(settings: Settings, tmp_path: Path) -> None:
    async with coldstart.join(tmp_path / "nothing", settings=settings, wait=False) as replica:
        with pytest.raises(coldstart.CheckpointError):
            await replica.ready()
        assert (replica.health.phase, replica.health.ready) == (coldstart.Phase.FAILED, False)
        assert "nothing" in replica.health.reason
        assert not replica.draining


@pytest.mark.parametrize("mounted", [False, True], ids=["around", "mounted"])
async def test_the_application_keeps_everything_else(mounted: bool) -> None:
    checks = HealthChecks()
    app = hello()
    if mounted:
        app.router.routes.insert(0, Mount("/internal", HealthRoutes(checks=checks)))
    else:
        app.add_middleware(HealthRoutes, checks=checks)
    below = "/internal" if mounted else ""
    assert (await over_asgi(app, "GET", f"{below}/healthz")).status == 200
    assert (await over_asgi(app, "GET", f"{below}/readyz")).status == 503
    assert (await over_asgi(app, "HEAD", f"{below}/readyz")).body == b""
    assert (await over_asgi(app, "POST", f"{below}/readyz")).status == 405
    assert (await over_asgi(app, "GET", f"{below}/drain")).status == 404
    assert (await over_asgi(app, "GET", "/")).body == b"hello"
    assert (await over_asgi(app, "GET", f"{below}/unknown")).status == 404


async def test_without_an_application_it_is_one_of_its_own() -> None:
    """uvicorn starts nothing that does not answer its lifespan."""
    sent: list[Message] = []
    asked = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> Message:
        return next(asked)

    async def send(message: Message) -> None:
        sent.append(message)

    await HealthRoutes(checks=HealthChecks())({"type": "lifespan"}, receive, send)
    assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


@pytest.mark.parametrize(
    ("client", "forwarded", "allowed"),
    [
        ("127.0.0.1", False, True),
        ("127.8.9.1", False, True),
        ("::1", False, True),
        ("::ffff:127.0.0.1", False, True),
        ("", False, True),
        ("127.0.0.1", True, False),
        ("10.0.0.1", False, False),
        ("::ffff:10.0.0.1", False, False),
        ("testclient", False, False),
    ],
)
def test_only_this_host_may_drain(client: str, forwarded: bool, allowed: bool) -> None:
    asked = Asked("POST", "/drain", client, forwarded)
    answer = HealthChecks(drain="loopback").answer(asked)
    assert (answer is None) is allowed
    assert allowed or (answer is not None and answer.status == 403)
    refused = HealthChecks().answer(asked)
    assert refused is not None
    assert refused.status == 404, "it is off by default"


async def test_a_proxy_does_not_make_strangers_local() -> None:
    app = HealthRoutes(checks=HealthChecks(drain="loopback"))
    for name in (b"x-forwarded-for", b"forwarded", b"x-real-ip"):
        answered = await over_asgi(app, "POST", "/drain", ("127.0.0.1", 1), (name, b"10.0.0.9"))
        assert answered.status == 403
    assert (await over_asgi(app, "POST", "/drain")).status == 200


async def test_draining_waits_for_its_grace_once(settings: Settings, checkpoint: Path) -> None:
    """A hook has begun it; the signal after that waits for what is left."""
    checks = HealthChecks()
    began = anyio.current_time()
    await checks.drain()
    await checks.drain(grace=0.2)
    assert anyio.current_time() - began >= 0.2
    with anyio.fail_after(0.1):
        await checks.drain(grace=0.2)


# ------------------------------------------------------------------------------- a port of its own


async def test_a_worker_without_a_server_answers_on_a_port(settings: Settings, checkpoint: Path) -> None:
    checks = HealthChecks(drain="loopback")
    async with listening(checks, 0, "127.0.0.1") as port:
        assert (await ask_http(port, "GET", "/healthz")).status == 200
        assert (await ask_http(port, "GET", "/readyz?verbose")).status == 503
        async with coldstart.join(checkpoint, skeleton="tensors", settings=settings) as replica:
            with checks.following(replica):
                assert told(await ask_http(port, "GET", "/readyz")).ready
                assert (await ask_http(port, "HEAD", "/readyz")).body == b""
                assert (await ask_http(port, "POST", "/drain", b"", "X-Forwarded-For: 10.0.0.9")).status == 403
                assert (await ask_http(port, "PUT", "/healthz")).status == 405
                assert (await ask_http(port, "GET", "/metrics")).status == 404
                drained = await ask_http(port, "POST", "/drain")
                assert (drained.status, told(drained).draining) == (200, True)
                assert (await ask_http(port, "GET", "/readyz")).status == 503


@pytest.mark.parametrize("said", [b"", b"hello\r\n\r\n", b"GET /healthz\r\n\r\n", b"\xff\xfe\r\n\r\n", b"G" * 20_000])
async def test_whoever_speaks_something_else_is_left(said: bytes) -> None:
    async with listening(HealthChecks(), 0, "127.0.0.1") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        writer.write_eof()
        with anyio.fail_after(SECONDS):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
        assert (await ask_http(port, "GET", "/healthz")).status == 200


async def test_a_port_that_is_taken_is_one_line() -> None:
    async with listening(HealthChecks(), 0, "127.0.0.1") as port:
        with pytest.raises(ConfigError, match=f"no health checks on 127.0.0.1:{port}"):
            async with listening(HealthChecks(), port, "127.0.0.1"):
                pass


# ------------------------------------------------------------------------------------- other loops


async def test_each_replica_lives_on_the_loop_it_was_made_on(settings: Settings, checkpoint: Path) -> None:
    """Ray Serve runs user code on a loop in a thread of its own, beside the loop of its actor."""
    told: dict[str, tuple[str, bool]] = {}
    together = threading.Barrier(3)  # once all are there, and once each has been looked at

    async def hold(name: str) -> None:
        async with coldstart.join(checkpoint, skeleton="tensors", worker=name, settings=settings) as replica:
            await asyncio.to_thread(together.wait, SECONDS)
            told[name] = (replica.report.path, replica.health.ready)
            await asyncio.to_thread(together.wait, SECONDS)

    async with (
        coldstart.join(checkpoint, skeleton="tensors", worker="here", settings=settings) as replica,
        anyio.create_task_group() as tasks,
    ):
        for name in ("one", "two"):
            tasks.start_soon(asyncio.to_thread, asyncio.run, hold(name))
        await asyncio.to_thread(together.wait, SECONDS)
        await asyncio.to_thread(together.wait, SECONDS)
        assert replica.health.ready
    assert told == {"one": ("peer", True), "two": ("peer", True)}
