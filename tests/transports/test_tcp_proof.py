"""tcp between members of a fleet with keys: both sides prove it, nobody else reads or is read from."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import anyio.to_thread
import pytest

from coldstart.errors import TransportError
from coldstart.ports import TransportSettings
from coldstart.proofs import PROOF_BYTES
from coldstart.refusals import Refusals
from coldstart.seals import Key, Keys
from coldstart.signing import FleetSigner
from coldstart.testing.keyed_contract import KeyedContract
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transport_contract import Landings, grant, whole
from coldstart.transports import tcp_source, wire
from coldstart.transports.tcp import FACTORY, TcpTransport
from coldstart.transports.wire import Status, Ticket

OLD = Key("old1", b"old1" * 8)
LAYOUT = layout_of(3_000_000)


class TestKeys(KeyedContract):
    hello_seconds = "coldstart.transports.tcp_source.HELLO_SECONDS"
    answers = (len(wire.answer(Status.OK)), len(wire.answer(Status.OK)))

    def open_source(self, settings: TransportSettings) -> TcpTransport:
        return FACTORY.open(settings)


@contextmanager
def impostor(script: Callable[[socket.socket], None]) -> Iterator[Ticket]:
    """A source that has heard of a ticket and has no key."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as sock, suppress(OSError):
                script(sock)

        thread = threading.Thread(target=serve)
        thread.start()
        yield Ticket("127.0.0.1", listener.getsockname()[1], bytes(16), "t")
        thread.join()


def admits_without_a_proof(sock: socket.socket) -> None:
    wire.read_hello(sock, 5)
    sock.sendall(wire.answer(Status.OK) + bytes(16))
    wire.receive_by(sock, PROOF_BYTES, time.monotonic() + 5)
    sock.sendall(wire.answer(Status.OK) + bytes(64) + b"\xee" * 5000)


def says_our_proof_again(sock: socket.socket) -> None:
    wire.read_hello(sock, 5)
    sock.sendall(wire.answer(Status.OK) + bytes(16))
    sock.sendall(wire.answer(Status.OK) + wire.receive_by(sock, PROOF_BYTES, time.monotonic() + 5) + b"\xee" * 5000)


def says_what_older_ones_say(sock: socket.socket) -> None:
    wire.read_hello(sock, 5)
    sock.sendall(wire.answer(Status.OK) + wire.answer(Status.OK) + b"\xee" * 5000)


@pytest.mark.parametrize("script", [admits_without_a_proof, says_our_proof_again, says_what_older_ones_say])
async def test_nothing_is_read_from_an_impostor(script: Callable[[socket.socket], None]) -> None:
    signer = FleetSigner(lambda: Keys((OLD,)), Refusals())
    joiner = FACTORY.open(TransportSettings(io_seconds=5.0, connections=1, signer=signer))
    target = BytesMemory(LAYOUT)
    with impostor(script) as ticket, pytest.raises(TransportError) as caught:
        await joiner.pull(ticket.encode(), [whole(LAYOUT)], target, Landings())
    assert caught.value.reason in ("refused", "protocol", "closed")
    assert target.storages == BytesMemory(LAYOUT).storages
    await joiner.aclose()


async def test_strangers_of_one_address_take_no_place_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_source, "MAX_STRANGERS", 8)
    source = FACTORY.open(TransportSettings(io_seconds=5.0))
    ticket = wire.decode_ticket(await source.offer(grant("t"), BytesMemory(LAYOUT)))
    address = (ticket.host, ticket.port)
    with closing(socket.create_connection(address, timeout=5)) as honest:
        crowd = [socket.create_connection(address, timeout=5, source_address=("127.0.0.2", 0)) for _ in range(24)]
        for sock in crowd[:16]:
            with closing(sock):
                assert await anyio.to_thread.run_sync(sock.recv, 1) == b""
        honest.sendall(wire.hello(ticket))
        assert wire.read_answer(honest) == (Status.OK, wire.NOWHERE)
        for sock in crowd[16:]:
            sock.close()
    await source.aclose()
