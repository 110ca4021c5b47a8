"""A worker that is told to end is no source any more while its last requests are still being answered."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest
import yaml
from rig.store import Store

from coldstart.bus.redis import RedisBus
from tests.embed.asking import ask_http, parsed, request
from tests.embed.rollout import INPUTS, expected, write_checkpoint
from tests.embed.worker import EXAMPLES, SECONDS, Worker, free_places

DEPLOY = EXAMPLES.parent / "deploy" / "kubernetes"

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


@asynccontextmanager
async def serving(place: Path, **environment: str) -> AsyncIterator[tuple[Worker, Store]]:
    """The FastAPI example, ready and advertised."""
    store = Store(place / "store")
    checkpoint = write_checkpoint(place / "model")
    where = free_places(1, apart=False)[0]
    worker = Worker("04_fastapi.py", checkpoint, where, place / "log", {"COLDSTART_REDIS": store.url, **environment})
    try:
        await worker.ready()
        await until_advertised(store, 1)
        yield worker, store
    finally:
        worker.kill()
        store.kill()


async def advertised(store: Store) -> int:
    """How many sources the fleet knows."""
    bus = await RedisBus.open(store.url, probe=False)
    try:
        return sum([len(await bus.adverts(key)) for key in await bus.shards()])
    finally:
        await bus.aclose()


async def until_advertised(store: Store, wanted: int) -> None:
    with anyio.fail_after(SECONDS):
        while await advertised(store) != wanted:
            await anyio.sleep(0.05)


async def test_it_is_withdrawn_while_a_request_is_in_flight(place: Path) -> None:
    """A request whose body is still on its way holds uvicorn, and the lifespan, for as long as we like."""
    async with serving(place, GRACE_SECONDS="2") as (worker, store):
        body = msgspec.json.encode(INPUTS)
        whole = request("POST", "/predict", body)
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.place.port)
        writer.write(whole[: -len(body)])
        await writer.drain()
        assert (await ask_http(worker.place.port, "POST", "/predict", body)).status == 200
        worker.terminate()
        await until_advertised(store, 0)
        told = await worker.health()
        assert told is not None, "the listener was closed before any balancer could see that it is not ready"
        assert (told[0], told[1].draining, told[1].ready) == (503, True, False)
        with anyio.fail_after(SECONDS):
            while await worker.health() is not None:  # until the listener is closed
                await anyio.sleep(0.05)
        writer.write(body)
        answered = parsed(await reader.read())
        writer.close()
        assert answered.status == 200
        assert msgspec.json.decode(answered.body) == pytest.approx(expected(place / "model"), abs=1e-4)
        assert await worker.ended() == -15


@pytest.mark.embed
async def test_the_hook_of_the_manifests_withdraws_and_the_signal_waits_no_more(place: Path) -> None:
    async with serving(place, GRACE_SECONDS="0") as (worker, store):
        manifest = next(yaml.safe_load_all((DEPLOY / "worker.yaml").read_text()))
        (only,) = manifest["spec"]["template"]["spec"]["containers"]
        _, *words, code = only["lifecycle"]["preStop"]["exec"]["command"]
        code = code.replace(":8000", f":{worker.place.port}")
        hook = await anyio.run_process([sys.executable, *words, code], check=False)
        assert hook.returncode == 0, hook.stderr
        assert await advertised(store) == 0
        body = msgspec.json.encode(INPUTS)
        assert (await ask_http(worker.place.port, "POST", "/predict", body)).status == 200, "not everybody knows yet"
        assert (await ask_http(worker.place.port, "GET", "/readyz")).status == 503
        assert (await ask_http(worker.place.port, "GET", "/healthz")).status == 200
        worker.terminate()
        assert await worker.ended() == -15


@pytest.mark.embed
async def test_a_cold_start_that_fails_ends_the_process(place: Path) -> None:
    checkpoint = write_checkpoint(place / "model")
    (checkpoint / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    where = free_places(1, apart=False)[0]
    worker = Worker("04_fastapi.py", checkpoint, where, place / "log", {"COLDSTART_REDIS": "none"})
    try:
        assert await worker.ended() == 1
        assert worker.log.startswith("coldstart: ")
        assert len(worker.log.splitlines()) == 1
    finally:
        worker.kill()
