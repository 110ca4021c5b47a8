"""Strangers and slow readers at a source's port."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import anyio
import pytest
from rig.case import Case
from rig.fleet import PATIENCE, SLOW, Fleet, Worker
from rig.worker import Standing

from coldstart.bus.redis import RedisBus
from coldstart.messages import Accept, Hello, Offer, decode, encode
from coldstart.ports import Claim, Cursor, Granted
from coldstart.transports import wire

pytestmark = pytest.mark.faults
fault = pytest.mark.fault

JOIN = 1.0
"""A cold start from the source, beside the others."""
MIB = 1 << 20


async def lending(workers: Fleet, **settings: object) -> tuple[Worker, Standing]:
    """A source that has lent once, so that its port is open, and what it costs when at rest."""
    source = await workers.serving("source", **settings)
    await workers.check_lends(source)
    return source, await source.standing()


async def back_to(before: Standing, source: Worker) -> None:
    """Threads, descriptors and memory are what they were."""
    with anyio.fail_after(PATIENCE):
        while (now := await source.standing()).threads > before.threads or now.descriptors > before.descriptors:
            await anyio.sleep(0.05)
    assert now.resident <= before.resident + 8 * MIB


def connected(workers: Fleet) -> socket.socket:
    return socket.create_connection(("127.0.0.1", workers.port("source")), timeout=5.0)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(bytes(range(256)) * 256, id="garbage"),
        pytest.param(b"", id="silent"),
        pytest.param(b"CST1" + bytes(10), id="half a hello"),
        pytest.param(b"CST1" + bytes(32), id="wrong secret"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="http"),
    ],
)
@fault("200 strangers", "SERVE", "an honest joiner gets all; at rest again", JOIN)
async def test_strangers(said: bytes, workers: Fleet, case: Case) -> None:
    source, before = await lending(workers)
    with ExitStack() as sockets:
        for _ in range(200):
            stranger = sockets.enter_context(connected(workers))
            stranger.setblocking(False)
            _send_some(stranger, said)
        joiner = await workers.start("joiner")
        with case.clock():
            report = await joiner.serving()
        assert (report.path, report.sources, report.detours) == ("peer", ("source",), ())
        await back_to(before, source)
    await workers.check(source, joiner)


def _send_some(stranger: socket.socket, said: bytes) -> None:
    try:
        stranger.send(said)
    except (BlockingIOError, ConnectionError):
        return


@fault("a storm of 3000 connections", "SERVE", "an honest joiner gets all; at rest again", JOIN)
async def test_a_storm_of_connections(workers: Fleet, case: Case) -> None:
    source, before = await lending(workers)
    port = workers.port("source")
    opened = 0

    async def storm() -> None:
        nonlocal opened
        for _ in range(300):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            opened += 1
            writer.write(b"CST1")
            writer.transport.abort()

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(storm)
        joiner = await workers.start("joiner")
        with case.clock():
            report = await joiner.serving()
    assert opened > 2000
    assert (report.path, report.sources, report.detours) == ("peer", ("source",), ())
    await back_to(before, source)
    await workers.check(source, joiner)


class Insider:
    """A joiner with a right to the weights, that does with it what it likes."""

    def __init__(self, ticket: wire.Ticket) -> None:
        self.ticket = ticket

    def connect(self) -> socket.socket:
        """A connection that the source has admitted."""
        sock = socket.create_connection((self.ticket.host, self.ticket.port), timeout=5.0)
        sock.sendall(wire.hello(self.ticket))
        assert wire.read_answer(sock)[0] == wire.Status.OK
        return sock


@asynccontextmanager
async def insider(workers: Fleet) -> AsyncIterator[Insider]:
    """A claim by hand: a slot, an offer, its acceptance; and then never another letter."""
    bus = await RedisBus.open(workers.store.url, probe=False)
    try:
        (shard,) = await bus.shards()
        (advert,) = await bus.adverts(shard)
        inbox, transfer, number = secrets.token_hex(6), secrets.token_hex(8), 1234
        hello = Hello(
            transfer=transfer, joiner=inbox, number=number, layout=advert.layout, transports=advert.transports
        )
        claim = Claim(
            shard, advert.layout, "insider", transfer, encode(hello), transports=advert.transports, lead_seconds=0
        )
        assert isinstance(await bus.claim(claim), Granted)
        heard = await bus.listen(shard, inbox, Cursor(), PATIENCE)
        while not heard.letters:
            heard = await bus.listen(shard, inbox, heard.cursor, PATIENCE)
        offer = decode(heard.letters[0].body)
        assert isinstance(offer, Offer)
        accept = Accept(transfer=transfer, answer=offer.number + 1)
        await bus.send(shard, advert.inbox, encode(accept), secrets.token_hex(8))
        yield Insider(wire.decode_ticket(offer.ticket))
    finally:
        await bus.aclose()


@fault("a joiner that reads nothing", "TRANSFER", "an honest joiner gets all; its slot is free", 7.0)
async def test_a_reader_that_never_reads(workers: Fleet, case: Case) -> None:
    source, before = await lending(workers, io_seconds=3.0)
    async with insider(workers) as evil:
        with ExitStack() as sockets:
            for _ in range(16):
                sock = sockets.enter_context(evil.connect())
                for at in range(4):
                    sock.sendall(wire.request(wire.Span(4 * at * MIB, 4 * MIB)))
            with case.clock():
                joiner = await workers.start("joiner")
                report = await joiner.serving()
                await workers.lends_nothing(source)
            assert (report.path, report.sources, report.detours) == ("peer", ("source",), ())
            await back_to(before, source)
    await workers.check(source, joiner)


@fault("a joiner that asks for what is not there", "TRANSFER", "it is told so; at rest again", 0.5)
async def test_a_joiner_that_asks_for_too_much(workers: Fleet, case: Case) -> None:
    source, before = await lending(workers)
    async with insider(workers) as evil:
        with case.clock():
            await anyio.to_thread.run_sync(_ask_for_too_much, evil)
        await back_to(before, source)
    await workers.check(source)


def _ask_for_too_much(evil: Insider) -> None:
    for span in (wire.Span(0, 0), wire.Span(0, 1 << 40), wire.Span(1 << 62, 4096), wire.Span((1 << 64) - 1, 1)):
        with evil.connect() as sock:
            sock.sendall(wire.request(span))
            assert wire.read_answer(sock)[0] == wire.Status.BAD_REQUEST
            assert sock.recv(1) == b""


@fault("a stranger beside a slow transfer", "TRANSFER", "the transfer goes on", 3.2)
async def test_strangers_do_not_disturb_a_transfer(workers: Fleet, case: Case) -> None:
    source, _ = await lending(workers, lend_gbps=SLOW)
    joiner = await workers.start("joiner")
    await joiner.reached("TRANSFER", nbytes=1)
    with ExitStack() as sockets, case.clock():
        for _ in range(200):
            sockets.enter_context(connected(workers))
        report = await joiner.serving()
    assert (report.path, report.sources, report.detours) == ("peer", ("source",), ())
    await workers.check(source, joiner)
