"""tcp: the contract, hostile peers on both sides, real processes that die, and the pace."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from typing import NoReturn

import anyio
import msgspec
import pytest

from coldstart.errors import ConfigError, TransportError
from coldstart.layout import Span
from coldstart.ports import Memory, Transport, TransportFactory, TransportSettings
from coldstart.testing.growing_contract import GrowingContract
from coldstart.testing.late_writes import Gated, Pulling, SendLate
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transport_contract import (
    MIB,
    SLOW,
    Landings,
    TransportContract,
    eventually,
    grant,
    payload,
    resources,
    whole,
)
from coldstart.transports import tcp_joiner, wire
from coldstart.transports.tcp import FACTORY, TcpTransport
from coldstart.transports.wire import Status, Ticket, decode_ticket
from tests.transports.peers import answering, in_thread

FACTORY_FITS: TransportFactory = FACTORY
SETTINGS = TransportSettings(io_seconds=5.0)


class TestTcp(GrowingContract):
    def open_source(self, settings: TransportSettings) -> Transport:
        return FACTORY.open(settings)


class TestTcpOverOneConnection(GrowingContract):
    def open_source(self, settings: TransportSettings) -> Transport:
        return FACTORY.open(msgspec.structs.replace(settings, connections=1))


class TestTcpWithASourceThatSendsLate(TransportContract):
    """A peer that stops in the middle of a slice and, once the joiner has left, sends the rest and more."""

    def open_source(self, settings: TransportSettings) -> Transport:
        return FACTORY.open(settings)

    @asynccontextmanager
    async def sending_late(self, held: Memory) -> AsyncIterator[tuple[Transport, bytes, SendLate]]:
        late = threading.Event()
        talking: list[socket.socket] = []
        ended: list[bool] = []

        def script(sock: socket.socket) -> None:
            talking.append(sock)
            refused = False
            try:
                wire.read_hello(sock, 5)
                sock.sendall(wire.answer(Status.OK))
                send(sock, wire.read_request(sock))
                span = wire.read_request(sock)
                send(sock, span, span.length // 2)
                assert late.wait(30)
                for _ in range(2000):
                    sock.sendall(b"\xee" * 4096)
            except OSError:
                refused = True
            finally:
                ended.append(refused)

        def send(sock: socket.socket, span: Span, length: int | None = None) -> None:
            sock.sendall(wire.answer(Status.OK, span))
            with held.reading(span) as views:
                sock.sendall(b"".join(views)[:length])

        async def send_late() -> None:
            late.set()
            await eventually(lambda: len(ended) == len(talking))
            assert all(ended), "a connection of a joiner that has left still takes bytes"

        joiner = FACTORY.open(SETTINGS)
        with answering(script, connections=SETTINGS.connections) as ticket:
            try:
                yield joiner, ticket, send_late
            finally:
                late.set()
                await joiner.aclose()


class TestEnds:
    async def test_asyncio_cancellation_works_like_anyios(self) -> None:
        """``asyncio.timeout`` and ``task.cancel`` cancel the task itself, not a scope."""
        source = FACTORY.open(TransportSettings(lend_bytes_per_second=SLOW))
        layout = layout_of(64 * MIB)
        held, target, landed = BytesMemory(layout, fill=1), BytesMemory(layout), Landings()
        ticket = await source.offer(grant("t"), held)
        task = asyncio.create_task(source.pull(ticket, [whole(layout)], target, landed))
        await landed.first()
        task.cancel()
        with pytest.raises(asyncio.CancelledError), anyio.fail_after(2):
            await task
        assert target.lent == 0
        await source.aclose()

    async def test_a_cancelled_pull_lets_its_source_go_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Even one that waits for room to send in. The kernel gives no room for a joiner that shuts its socket and
        then reads what had come; without a reset the source would wait for its own timeout."""
        # However busy the machine is, slices grow.
        monkeypatch.setattr(tcp_joiner, "QUICK_SECONDS", math.inf)
        monkeypatch.setattr(tcp_joiner, "SLOW_SECONDS", math.inf)

        class HeldWhenLarge(Gated):
            def writing(self, span: Span) -> AbstractContextManager[Sequence[memoryview]]:
                return super().writing(span) if span.length == wire.SLICE else inner.writing(span)

        layout = layout_of(64 * MIB)
        inner, blocked, released = BytesMemory(layout), threading.Event(), threading.Event()

        def script(sock: socket.socket) -> None:
            wire.read_hello(sock, 5)
            sock.sendall(wire.answer(Status.OK))
            try:
                while True:
                    span = wire.read_request(sock)
                    sock.sendall(wire.answer(Status.OK, span))
                    # More than was asked for: what the sockets hold is the kernel's choice.
                    left = memoryview(bytes(span.length if span.length < wire.SLICE else 16 * wire.SLICE))
                    while left:
                        sock.settimeout(60 if blocked.is_set() else 0.1)
                        with suppress(TimeoutError):
                            left = left[sock.send(left) :]
                            continue
                        blocked.set()
            except ConnectionError:
                released.set()

        joiner, target = FACTORY.open(TransportSettings(connections=1)), HeldWhenLarge(inner)
        with answering(script, connections=1) as ticket:
            pulling = Pulling(joiner, ticket, target, Landings())
            await eventually(blocked.is_set)
            pulling.cancel("by anyio")
            target.let_go()
            assert await pulling.returns_within(2)
            await eventually(released.is_set, seconds=2)
        await joiner.aclose()

    async def test_stopping_before_the_connection_is_made_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A socket that is shut before it is connected connects all the same, here to a source that never answers."""

        class Late(socket.socket):
            def connect(self, address: object) -> None:
                pull.stop()
                super().connect(address)  # type: ignore[arg-type]

        with socket.create_server(("127.0.0.1", 0)) as silent:
            ticket = Ticket(host="127.0.0.1", port=silent.getsockname()[1], secret=bytes(16), transfer="t")
            pull = tcp_joiner.Pull(ticket, [Span(0, 10)], BytesMemory(layout_of(10)), Landings(), io_seconds=5.0)
            monkeypatch.setattr(tcp_joiner.socket, "socket", Late)
            began = time.monotonic()
            await in_thread(pull.run)
            assert time.monotonic() - began < 2
        assert pull.error is None

    async def test_an_error_of_the_target_is_not_hidden(self) -> None:
        class Full(BytesMemory):
            def writing(self, span: Span) -> NoReturn:
                raise MemoryError("no staging")

        source = FACTORY.open(SETTINGS)
        layout = layout_of(100)
        ticket = await source.offer(grant("t"), BytesMemory(layout))
        with pytest.raises(MemoryError, match="no staging"):
            await source.pull(ticket, [whole(layout)], Full(layout), Landings())
        await source.aclose()

    async def test_a_cancelled_close_still_closes(self) -> None:
        before = resources()
        source = FACTORY.open(SETTINGS)
        await source.offer(grant("t"), BytesMemory(layout_of(10)))
        with anyio.CancelScope() as scope:
            scope.cancel()
            await source.aclose()
        await eventually(lambda: resources() <= before)

    async def test_a_second_offer_of_a_transfer_replaces_the_first(self) -> None:
        source = FACTORY.open(SETTINGS)
        layout = layout_of(100)
        first, second = BytesMemory(layout, seed=1), BytesMemory(layout, seed=2)
        old, new = await source.offer(grant("t"), first), await source.offer(grant("t"), second)
        target = BytesMemory(layout)
        with pytest.raises(TransportError):
            await source.pull(old, [whole(layout)], target, Landings())
        await source.pull(new, [whole(layout)], target, Landings())
        assert target.storages == second.storages
        await source.aclose()


SOURCE = """
import sys, anyio
from coldstart.ports import TransportSettings
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transport_contract import MIB, SLOW, grant
from coldstart.transports.tcp import FACTORY
async def main():
    source = FACTORY.open(TransportSettings(lend_bytes_per_second=SLOW))
    print((await source.offer(grant("t"), BytesMemory(layout_of(64 * MIB), fill=1))).hex(), flush=True)
    await anyio.sleep_forever()
anyio.run(main)
"""


@pytest.mark.processes
@pytest.mark.parametrize(("blow", "reason"), [(signal.SIGKILL, "closed"), (signal.SIGSTOP, "timeout")])
async def test_a_source_process_that_dies_or_stops(blow: signal.Signals, reason: str) -> None:
    layout = layout_of(64 * MIB)
    landed = Landings()
    joiner = FACTORY.open(TransportSettings(io_seconds=0.5))
    failures: list[TransportError] = []
    async with await anyio.open_process([sys.executable, "-c", SOURCE], stderr=None) as process:
        try:
            assert process.stdout is not None
            ticket = bytes.fromhex((await process.stdout.receive()).decode())

            async def pull() -> None:
                try:
                    await joiner.pull(ticket, [whole(layout)], BytesMemory(layout), landed)
                except TransportError as error:
                    failures.append(error)

            with anyio.fail_after(10):
                async with anyio.create_task_group() as group:
                    group.start_soon(pull)
                    await landed.first()
                    process.send_signal(blow)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
    assert [failure.reason for failure in failures] == [reason]
    await joiner.aclose()


async def test_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    source = FACTORY.open(TransportSettings(host="::1"))
    layout = layout_of(1000)
    held, target = BytesMemory(layout, seed=1), BytesMemory(layout)
    ticket = await source.offer(grant("t"), held)
    assert decode_ticket(ticket).host == "::1"
    assert str(decode_ticket(ticket)).startswith("[::1]:")
    await source.pull(ticket, [whole(layout)], target, Landings())
    assert payload(target, layout) == payload(held, layout)
    await source.aclose()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0", "224.0.0.1"])
def test_an_address_that_peers_cannot_use_is_a_setting_error(host: str) -> None:
    with pytest.raises(ConfigError, match="peers can reach"):
        FACTORY.open(TransportSettings(host=host))


@pytest.mark.parametrize(
    "host", ["203.0.113.1", "2001:db8::1", "no such host", "127.0.0.1:5", "", "two\nlines", "nul\0", "a" * 64, "é" * 70]
)
def test_a_host_that_is_not_here_is_found_out_at_once(host: str) -> None:
    with pytest.raises(ConfigError, match="peers can reach") as caught:
        FACTORY.open(TransportSettings(host=host))
    assert f"tcp cannot listen on {host!r}: " in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_opening_leaves_no_socket() -> None:
    before = resources()
    transport = FACTORY.open(TransportSettings(host="localhost"))
    assert resources() <= before
    await transport.aclose()


async def test_an_address_that_has_gone_since_cannot_be_offered() -> None:
    transport = TcpTransport(TransportSettings(host="192.0.2.1"))
    with pytest.raises(TransportError, match=r"cannot listen on 192\.0\.2\.1") as caught:
        await transport.offer(grant("t"), BytesMemory(layout_of(1)))
    assert caught.value.reason == "unreachable"
    await transport.aclose()


def test_probe() -> None:
    assert FACTORY.probe().usable


async def test_lending_and_pulling_take_none_of_the_hosts_threads() -> None:
    """All of anyio's worker threads are busy with the host's own work; the weights move all the same."""
    layout = layout_of(3 * MIB + 5)
    held, target = BytesMemory(layout, seed=1), BytesMemory(layout)
    source, joiner = FACTORY.open(TransportSettings()), FACTORY.open(TransportSettings())
    limiter = anyio.to_thread.current_default_thread_limiter()
    busy = [object() for _ in range(int(limiter.total_tokens))]
    for borrower in busy:
        limiter.acquire_on_behalf_of_nowait(borrower)
    try:
        with anyio.fail_after(10):
            await joiner.pull(await source.offer(grant("t"), held), [whole(layout)], target, Landings())
            assert target.storages == held.storages
            await source.revoke("t")
            await joiner.aclose()
            await source.aclose()
    finally:
        for borrower in busy:
            limiter.release_on_behalf_of(borrower)
