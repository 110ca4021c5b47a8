"""tcp: the contract, hostile peers on both sides, real processes that die, and the pace."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from math import inf
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
from coldstart.transports import tcp_joiner, tcp_source, wire
from coldstart.transports.pacing import Pace
from coldstart.transports.tcp import FACTORY, TcpTransport
from coldstart.transports.wire import Status, Ticket, decode_ticket

FACTORY_FITS: TransportFactory = FACTORY
SETTINGS = TransportSettings(io_seconds=5.0)
IMPATIENT = TransportSettings(io_seconds=0.2)
SMALLEST = wire.SMALLEST_SLICE


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


@contextmanager
def answering(script: Callable[[socket.socket], None], connections: int) -> Iterator[bytes]:
    """A server that runs ``script`` on so many connections, each in a thread; yields a ticket to it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ticket = Ticket(host="127.0.0.1", port=listener.getsockname()[1], secret=bytes(16), transfer="t")

        def serve() -> None:
            with suppress(OSError):
                sock, _ = listener.accept()
                with sock, suppress(OSError):
                    sock.settimeout(30)
                    script(sock)

        threads = [threading.Thread(target=serve) for _ in range(connections)]
        for thread in threads:
            thread.start()
        try:
            yield ticket.encode()
        finally:
            wire.shut(listener)  # wakes those who still accept
            for thread in threads:
                thread.join()


@contextmanager
def connected(ticket: Ticket) -> Iterator[socket.socket]:
    with socket.create_connection((ticket.host, ticket.port), timeout=5) as sock:
        yield sock


@contextmanager
def admitted(ticket: Ticket) -> Iterator[socket.socket]:
    """A raw joiner that has shown its secret."""
    with connected(ticket) as sock:
        sock.sendall(wire.hello(ticket))
        assert wire.read_answer(sock) == (Status.OK, wire.NOWHERE)
        yield sock


@contextmanager
def all_of(contexts: Iterable[AbstractContextManager[socket.socket]]) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(context) for context in contexts]


def until_closed(sock: socket.socket) -> bytes:
    """Everything the peer still says."""
    data = b""
    with suppress(ConnectionError):
        while more := sock.recv(65536):
            data += more
    return data


async def in_thread(work: Callable[[], object]) -> object:
    return await anyio.to_thread.run_sync(work)


class TestHostileJoiner:
    """Whatever strangers send, the source answers its own joiners."""

    @pytest.fixture(autouse=True)
    def _short_hello(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tcp_source, "HELLO_SECONDS", 0.2)

    async def _still_serves(self, source: TcpTransport) -> None:
        layout = layout_of(5 * MIB)
        held, target = BytesMemory(layout, seed=1), BytesMemory(layout)
        await source.pull(await source.offer(grant("honest"), held), [whole(layout)], target, Landings())
        assert target.storages == held.storages

    @pytest.mark.parametrize(
        "said",
        [
            b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n",
            b"\0" * 36,
            b"\xff" * 4096,
            b"CST1" + b"\0" * 32,
            b"CST2" + b"\0" * 32,
        ],
    )
    async def test_garbage_instead_of_a_hello(self, said: bytes) -> None:
        source = FACTORY.open(SETTINGS)
        ticket = decode_ticket(await source.offer(grant("t"), BytesMemory(layout_of(10))))
        with connected(ticket) as sock:
            sock.sendall(said)
            answer = await in_thread(partial(until_closed, sock))
        assert answer in (wire.answer(Status.REFUSED), b"")  # a reset may swallow it
        await self._still_serves(source)
        await source.aclose()

    async def test_the_right_transfer_with_another_secret(self) -> None:
        source = FACTORY.open(SETTINGS)
        held = BytesMemory(layout_of(10), seed=1)
        ticket = decode_ticket(await source.offer(grant("t"), held))
        forged = msgspec.structs.replace(ticket, secret=bytes(16))
        target = BytesMemory(layout_of(10))
        with pytest.raises(TransportError) as caught:
            await source.pull(forged.encode(), [whole(held.layout)], target, Landings())
        assert caught.value.reason == "refused"
        assert target.storages == [bytearray(10)]
        await source.aclose()

    @pytest.mark.parametrize(
        "span", [Span(0, 0), Span(0, 513), Span(512, 1), Span(2**64 - 1, 1), Span(0, 2**64 - 1), Span(1, 2**63)]
    )
    async def test_requests_outside_the_layout(self, span: Span) -> None:
        source = FACTORY.open(SETTINGS)
        memory = BytesMemory(layout_of(500), seed=1)
        with admitted(decode_ticket(await source.offer(grant("t"), memory))) as sock:
            sock.sendall(wire.request(span))
            assert await in_thread(partial(until_closed, sock)) == wire.answer(Status.BAD_REQUEST)
        await self._still_serves(source)
        await source.aclose()

    async def test_a_request_larger_than_the_limit(self) -> None:
        source = FACTORY.open(SETTINGS)
        memory = BytesMemory(layout_of(wire.MAX_REQUEST + 1))
        with admitted(decode_ticket(await source.offer(grant("t"), memory))) as sock:
            sock.sendall(wire.request(Span(0, wire.MAX_REQUEST + 1)))
            assert await in_thread(partial(until_closed, sock)) == wire.answer(Status.BAD_REQUEST)
        await source.aclose()

    async def test_silent_strangers_do_not_keep_others_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """More than may wait: the oldest are dropped, at once, for those who come later."""
        monkeypatch.setattr(tcp_source, "MAX_STRANGERS", 16)
        source = FACTORY.open(SETTINGS)
        ticket = decode_ticket(await source.offer(grant("t"), BytesMemory(layout_of(10))))
        with all_of([connected(ticket) for _ in range(48)]) as strangers:
            await self._still_serves(source)
            for sock in strangers:
                assert await in_thread(partial(until_closed, sock)) == b""
        await source.aclose()

    async def test_a_slow_hello_has_one_deadline_for_all_its_bytes(self) -> None:
        source = FACTORY.open(SETTINGS)
        ticket = decode_ticket(await source.offer(grant("t"), BytesMemory(layout_of(10))))
        with connected(ticket) as sock:
            sent = 0
            sock.setblocking(False)
            with anyio.fail_after(5):
                while True:  # a byte now and then, never the last one
                    with suppress(BlockingIOError, ConnectionError):
                        if sock.recv(1) == b"":
                            break
                    with suppress(ConnectionError):
                        sent += sock.send(b"C") if sent < 30 else 0
                    await anyio.sleep(0.02)
        assert sent < 30
        await source.aclose()

    async def test_a_joiner_that_never_reads_is_dropped_and_disturbs_nobody(self) -> None:
        source = FACTORY.open(IMPATIENT)
        memory = BytesMemory(layout_of(32 * MIB))
        with admitted(decode_ticket(await source.offer(grant("t"), memory))) as sock:
            for index in range(4):
                sock.sendall(wire.request(Span(index * 8 * MIB, 8 * MIB)))
            await self._still_serves(source)
            await eventually(lambda: memory.lent == 0)
        await source.aclose()

    async def test_revoke_does_not_wait_for_a_joiner_that_never_reads(self) -> None:
        source = FACTORY.open(TransportSettings(io_seconds=60))
        memory = BytesMemory(layout_of(32 * MIB))
        with admitted(decode_ticket(await source.offer(grant("t"), memory))) as sock:
            sock.sendall(wire.request(Span(0, 16 * MIB)))
            await eventually(lambda: memory.lent == 1)
            with anyio.fail_after(2):
                await source.revoke("t")
            assert memory.lent == 0
        await source.aclose()

    async def test_connections_per_grant_are_capped(self) -> None:
        source = FACTORY.open(SETTINGS)
        ticket = decode_ticket(await source.offer(grant("t"), BytesMemory(layout_of(10))))
        with all_of([admitted(ticket) for _ in range(wire.MAX_CONNECTIONS)]):
            with connected(ticket) as sock:
                sock.sendall(wire.hello(ticket))
                assert wire.read_answer(sock) == (Status.BUSY, wire.NOWHERE)
            await self._still_serves(source)
        await source.aclose()

    async def test_memory_that_cannot_be_read_is_reported(self, caplog: pytest.LogCaptureFixture) -> None:
        class Broken(BytesMemory):
            def reading(self, span: Span) -> NoReturn:
                raise RuntimeError("device lost")

        source = FACTORY.open(SETTINGS)
        layout = layout_of(100)
        ticket = await source.offer(grant("t"), Broken(layout))
        with pytest.raises(TransportError, match="could not read its own memory"):
            await source.pull(ticket, [whole(layout)], BytesMemory(layout), Landings())
        assert "device lost" in caplog.text
        await source.aclose()

    async def test_a_grant_ends_by_itself_in_mid_pull(self) -> None:
        source = FACTORY.open(TransportSettings(lend_bytes_per_second=SLOW))
        layout = layout_of(64 * MIB)
        held, target = BytesMemory(layout, fill=1), BytesMemory(layout)
        ticket = await source.offer(grant("t", seconds=0.3), held)
        with pytest.raises(TransportError), anyio.fail_after(5):
            await source.pull(ticket, [whole(layout)], target, Landings())
        await eventually(lambda: held.lent == 0)
        await source.aclose()


class TestHostileSource:
    """Whatever a source answers, a pull ends soon, with a reason, and writes nowhere else."""

    @contextmanager
    def _answering(self, script: Callable[[socket.socket], None]) -> Iterator[bytes]:
        """A server that runs ``script`` on each connection; yields a ticket to it."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ticket = Ticket(host="127.0.0.1", port=listener.getsockname()[1], secret=bytes(16), transfer="t")
            done = threading.Event()

            def serve() -> None:
                while not done.is_set():
                    sock, _ = listener.accept()
                    with sock, suppress(OSError):
                        sock.settimeout(5)
                        script(sock)

            thread = threading.Thread(target=serve)
            thread.start()
            try:
                yield ticket.encode()
            finally:
                done.set()
                with suppress(OSError):
                    socket.create_connection(listener.getsockname(), timeout=1).close()
                thread.join()

    async def _pull(self, ticket: bytes, settings: TransportSettings = IMPATIENT) -> TransportError:
        joiner = FACTORY.open(msgspec.structs.replace(settings, connections=1))
        target, landed = BytesMemory(layout_of(1000, 24), fill=7), Landings()
        with anyio.fail_after(5), pytest.raises(TransportError) as caught:
            await joiner.pull(ticket, [Span(0, 1000)], target, landed)
        assert landed.spans == []
        assert target.storages[1] == bytearray([7]) * 24
        assert target.lent == 0
        await joiner.aclose()
        return caught.value

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", "protocol"),
            (b"\xff" * 100, "protocol"),
            (wire.answer(Status.REFUSED), "refused"),
            (wire.answer(Status.BUSY), "refused"),
            (wire.answer(Status.REVOKED), "revoked"),
            (wire.answer(Status.OK, Span(0, 1000)), "protocol"),
            (b"", "closed"),
            (b"\0\0\0", "closed"),
        ],
    )
    async def test_answers_to_the_hello(self, answer: bytes, reason: str) -> None:
        def script(sock: socket.socket) -> None:
            wire.read_hello(sock, 5)
            sock.sendall(answer)

        with self._answering(script) as ticket:
            assert (await self._pull(ticket)).reason == reason

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (wire.answer(Status.OK, Span(0, 2**63)), "protocol"),
            (wire.answer(Status.OK, Span(0, 999)), "protocol"),
            (wire.answer(Status.OK, Span(1, 1000)), "protocol"),
            (struct.pack("!BQQ", 200, 0, 1000), "protocol"),
            (wire.answer(Status.REVOKED), "revoked"),
            (wire.answer(Status.OK, Span(0, 1000)) + b"x" * 999, "closed"),
            (wire.answer(Status.OK, Span(0, 1000)), "closed"),
        ],
    )
    async def test_answers_to_a_request(self, answer: bytes, reason: str) -> None:
        def script(sock: socket.socket) -> None:
            wire.read_hello(sock, 5)
            sock.sendall(wire.answer(Status.OK))
            assert wire.read_request(sock) == Span(0, 1000)
            sock.sendall(answer)

        with self._answering(script) as ticket:
            assert (await self._pull(ticket)).reason == reason

    async def test_a_source_that_falls_silent(self) -> None:
        def script(sock: socket.socket) -> None:
            wire.read_hello(sock, 5)
            sock.sendall(wire.answer(Status.OK))
            sock.sendall(wire.answer(Status.OK, Span(0, 1000)) + b"x" * 10)
            until_closed(sock)

        with self._answering(script) as ticket:
            assert (await self._pull(ticket)).reason == "timeout"

    async def test_surplus_bytes_are_never_read(self) -> None:
        def script(sock: socket.socket) -> None:
            wire.read_hello(sock, 5)
            sock.sendall(wire.answer(Status.OK))
            sock.sendall(wire.answer(Status.OK, Span(0, 1000)) + b"x" * 5000)
            until_closed(sock)

        joiner, target = FACTORY.open(IMPATIENT), BytesMemory(layout_of(1000, 24), fill=7)
        with self._answering(script) as ticket:
            await joiner.pull(ticket, [Span(0, 1000)], target, Landings())
        assert target.storages == [bytearray(b"x" * 1000), bytearray([7]) * 24]
        await joiner.aclose()

    async def test_nobody_listens(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        ticket = Ticket(host="127.0.0.1", port=port, secret=bytes(16), transfer="t")
        assert (await self._pull(ticket.encode())).reason == "unreachable"

    @pytest.mark.parametrize("host", ["example.com", "localhost", "/etc/passwd", "127.0.0.1:80", "a" * 64])
    async def test_names_in_tickets_are_not_looked_up(self, host: str) -> None:
        ticket = Ticket(host=host, port=80, secret=bytes(16), transfer="t")
        assert (await self._pull(ticket.encode())).reason == "protocol"

    async def test_cancelling_while_the_connection_is_made(self) -> None:
        """A listener whose queue is full answers no further connection."""
        joiner = FACTORY.open(TransportSettings(io_seconds=60, connections=1))
        with socket.socket() as listener, all_of([socket.socket() for _ in range(4)]) as fillers:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
            ticket = Ticket(host="127.0.0.1", port=listener.getsockname()[1], secret=bytes(16), transfer="t")
            began = time.monotonic()
            with anyio.move_on_after(0.1):
                await joiner.pull(ticket.encode(), [Span(0, 10)], BytesMemory(layout_of(10)), Landings())
            assert time.monotonic() - began < 2
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


class TestSliceSize:
    """What a connection asks for next, given what the last slice took."""

    @pytest.mark.parametrize(
        ("size", "length", "seconds", "then"),
        [
            (SMALLEST, SMALLEST, 0.01, 2 * SMALLEST),
            (SMALLEST, SMALLEST, 0.05, SMALLEST),
            (SMALLEST, SMALLEST, 0.25, SMALLEST),
            (SMALLEST, SMALLEST, 60.0, SMALLEST),
            (MIB, MIB, 0.0, 2 * MIB),
            (MIB, MIB, 0.15, MIB),
            (MIB, MIB, 0.3, MIB // 2),
            (MIB, MIB, 0.6, MIB // 4),
            (wire.SLICE, wire.SLICE, 0.0, wire.SLICE),
            (wire.SLICE, wire.SLICE, 3600.0, SMALLEST),
            (wire.SLICE, 100, 0.001, wire.SLICE),  # the end of a span says little
            (wire.SLICE, 100, 0.2, wire.SLICE),
            (wire.SLICE, 100, 0.3, SMALLEST),
            (2 * MIB, MIB, 0.01, 2 * MIB),  # asked for before the last doubling
            (MIB, 2 * MIB, 0.3, MIB),  # asked for before the last halving, which was enough
            (MIB, 2 * MIB, 0.8, MIB // 2),
        ],
    )
    def test_the_rule(self, size: int, length: int, seconds: float, then: int) -> None:
        assert tcp_joiner.next_size(size, length, seconds) == then

    @pytest.mark.parametrize("rate", [1e3, 1e6, 2e6, 5e6, 20e6, 100e6, 1e9, 1e10])
    def test_it_settles_at_every_speed(self, rate: float) -> None:
        """Neither too slow where smaller slices are possible, nor too small where larger ones are."""
        for start in (SMALLEST, wire.SLICE):
            size = start
            for _ in range(10):
                size = tcp_joiner.next_size(size, size, size / rate)
            assert tcp_joiner.next_size(size, size, size / rate) == size
            assert size == SMALLEST or size / rate <= tcp_joiner.SLOW_SECONDS
            assert size == wire.SLICE or size / rate >= tcp_joiner.QUICK_SECONDS

    async def test_a_slow_source_lands_in_small_steps(self) -> None:
        """Each landed range tells the joiner that the source is alive."""
        source = FACTORY.open(TransportSettings(lend_bytes_per_second=2e6))
        layout = layout_of(6 * SMALLEST)
        held, target, landed = BytesMemory(layout, seed=1), BytesMemory(layout), Landings()
        await source.pull(await source.offer(grant("t"), held), [whole(layout)], target, landed)
        assert target.storages == held.storages
        assert len(landed.spans) >= 4
        assert max(span.length for span in landed.spans) <= 2 * SMALLEST  # more than once only if we were kept waiting
        await source.aclose()

    async def test_a_fast_source_lands_in_large_steps(self) -> None:
        """One connection, so that the order is known; the steps are not, since machines differ."""
        source = FACTORY.open(TransportSettings(connections=1))
        layout = layout_of(64 * MIB)
        held, target, landed = BytesMemory(layout, fill=1), BytesMemory(layout), Landings()
        await source.pull(await source.offer(grant("t"), held), [whole(layout)], target, landed)
        assert [span.offset for span in landed.spans] == sorted(span.offset for span in landed.spans)
        assert landed.spans[0].length == SMALLEST
        assert max(span.length for span in landed.spans) > MIB
        await source.aclose()

    async def test_a_range_lands_after_its_memory_was_closed(self) -> None:
        """Device memory holds the bytes only then."""
        source = FACTORY.open(TransportSettings(connections=1))
        layout = layout_of(3 * MIB)
        target, lent = BytesMemory(layout), list[int]()
        ticket = await source.offer(grant("t"), BytesMemory(layout))
        await source.pull(ticket, [whole(layout)], target, lambda _: lent.append(target.lent))
        assert set(lent) == {0}
        await source.aclose()


def test_probe() -> None:
    assert FACTORY.probe().usable


class TestPace:
    def test_the_rate_is_kept_from_the_first_byte_on(self) -> None:
        pace, now = Pace(1000.0), 50.0
        for _ in range(100):
            now += pace.reserve(100, now)
        assert now - 50.0 == pytest.approx(9.89, abs=0.02)  # 9,900 bytes before the last, less 10 ms of burst

    def test_two_senders_share(self) -> None:
        pace = Pace(1000.0)
        waits = [pace.reserve(500, 0.0) for _ in range(4)]
        assert waits == pytest.approx([0.0, 0.5, 1.0, 1.5], abs=0.011)

    def test_a_pause_is_not_followed_by_a_burst(self) -> None:
        pace = Pace(1000.0)
        pace.reserve(1000, 0.0)
        assert pace.reserve(1000, 100.0) == 0.0
        assert pace.reserve(1000, 100.0) == pytest.approx(0.99)

    @pytest.mark.parametrize(
        ("rate", "quantum"),
        [(1.0, 1024), (50e6, 262_144), (10e6, 100_000), (1e12, 262_144), (inf, 262_144), (1e308, 262_144)],
    )
    def test_quanta_are_small(self, rate: float, quantum: int) -> None:
        assert Pace(rate).quantum == quantum

    @pytest.mark.parametrize("rate", [inf, 1e308, 1e18])
    async def test_an_absurd_cap_caps_nothing(self, rate: float) -> None:
        source = FACTORY.open(TransportSettings(lend_bytes_per_second=rate))
        layout = layout_of(3 * MIB)
        held, target = BytesMemory(layout, seed=1), BytesMemory(layout)
        await source.pull(await source.offer(grant("t"), held), [whole(layout)], target, Landings())
        assert target.storages == held.storages
        await source.aclose()

    async def test_a_revoke_does_not_wait_for_the_cap(self) -> None:
        """At so few bytes a second the next ones would go in seconds: nobody waits for that who only ends it."""
        source = FACTORY.open(TransportSettings(lend_bytes_per_second=100.0, connections=1))
        layout = layout_of(2 * SMALLEST)
        ticket = await source.offer(grant("t"), BytesMemory(layout, seed=1))
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:

                async def pull() -> None:
                    with pytest.raises(TransportError):
                        await source.pull(ticket, [whole(layout)], BytesMemory(layout), Landings())

                tasks.start_soon(pull)
                await eventually(lambda: source.reading("t"))
                await source.revoke("t")
        await source.aclose()

    async def test_a_capped_source_is_not_faster_over_more_connections(self) -> None:
        rate = 32.0 * MIB
        source = FACTORY.open(TransportSettings(lend_bytes_per_second=rate, connections=4))
        layout = layout_of(16 * MIB)
        ticket = await source.offer(grant("t"), BytesMemory(layout))
        began = time.monotonic()
        await source.pull(ticket, [whole(layout)], BytesMemory(layout), Landings())
        assert time.monotonic() - began >= 0.9 * 16 * MIB / rate
        await source.aclose()


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
