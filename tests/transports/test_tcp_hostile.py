"""TCP where the other side is hostile: strangers and joiners at a source's port, sources that lie or fall silent."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import NoReturn

import anyio
import msgspec
import pytest

from coldstart.errors import TransportError
from coldstart.layout import Span
from coldstart.ports import TransportSettings
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transport_contract import (
    MIB,
    SLOW,
    Landings,
    eventually,
    grant,
    whole,
)
from coldstart.transports import tcp_source, wire
from coldstart.transports.tcp import FACTORY, TcpTransport
from coldstart.transports.wire import Status, Ticket, decode_ticket
from tests.transports.peers import admitted, all_of, connected, in_thread, until_closed

SETTINGS = TransportSettings(io_seconds=5.0)
IMPATIENT = TransportSettings(io_seconds=0.2)


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
