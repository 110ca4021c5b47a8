"""tcp between members of a fleet with keys: both sides prove it, nobody else reads or is read from."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import pairwise

import anyio.to_thread
import msgspec
import pytest

from coldstart.errors import TransportError
from coldstart.ports import TransportSettings
from coldstart.proofs import NUMBER_BYTES, PROOF_BYTES
from coldstart.refusals import Refusals
from coldstart.seals import Key, Keys
from coldstart.signing import FleetSigner
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transport_contract import Landings, grant, whole
from coldstart.transports import tcp_source, wire
from coldstart.transports.tcp import FACTORY, TcpTransport
from coldstart.transports.wire import Status, Ticket

OLD, NEW, FOREIGN = (Key(name, name.encode() * 8) for name in ("old1", "new2", "evil"))
LAYOUT = layout_of(3_000_000)


def opened(*keys: Key, refusals: Refusals | None = None) -> TcpTransport:
    signer = FleetSigner(lambda: Keys(keys), refusals or Refusals()) if keys else None
    return FACTORY.open(TransportSettings(io_seconds=5.0, signer=signer))


async def pulled(source: TcpTransport, joiner: TcpTransport) -> None:
    """A pull of everything, compared."""
    held, target = BytesMemory(LAYOUT, seed=1), BytesMemory(LAYOUT)
    try:
        await joiner.pull(await source.offer(grant("t"), held), [whole(LAYOUT)], target, Landings())
        assert target.storages == held.storages
    except TransportError:
        assert target.storages == BytesMemory(LAYOUT).storages, "something came without a proof"
        raise
    finally:
        await joiner.aclose()
        await source.aclose()


STEPS = ((OLD,), (OLD, NEW), (NEW, OLD), (NEW,))
"""A key is added, then signs, then is alone."""


@pytest.mark.parametrize(("before", "after"), list(pairwise(STEPS)))
async def test_members_read_from_each_other_while_keys_are_changed(
    before: tuple[Key, ...], after: tuple[Key, ...]
) -> None:
    await pulled(opened(*before), opened(*after))
    await pulled(opened(*after), opened(*before))


@pytest.mark.parametrize(
    ("source", "joiner", "words"),
    [
        ((OLD,), (FOREIGN,), "wants a proof by a key"),
        ((OLD,), (Key(OLD.ident, FOREIGN.secret),), "wants a proof by a key"),
        ((OLD,), (), "wants a proof by a key"),
        ((), (OLD,), "has no keys"),
    ],
)
async def test_who_has_no_key_gets_nothing_and_is_told_why(
    source: tuple[Key, ...], joiner: tuple[Key, ...], words: str
) -> None:
    refusals = Refusals()
    with pytest.raises(TransportError, match=words) as caught:
        await pulled(opened(*source, refusals=refusals), opened(*joiner))
    assert caught.value.reason == "refused"
    assert bool(refusals.counts()) is bool(source)


@contextmanager
def relay(ticket: Ticket) -> Iterator[tuple[Ticket, list[bytes], list[bytes]]]:
    """Somebody on the path of one connection, who writes down what each side says."""
    said: tuple[list[bytes], list[bytes]] = ([], [])
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def carry(one: socket.socket, other: socket.socket, heard: list[bytes]) -> None:
            with suppress(OSError):
                while data := one.recv(1 << 16):
                    heard.append(data)
                    other.sendall(data)
            wire.shut(other)

        def serve() -> None:
            with listener.accept()[0] as joiner, socket.create_connection((ticket.host, ticket.port)) as source:
                back = threading.Thread(target=carry, args=(source, joiner, said[1]))
                back.start()
                carry(joiner, source, said[0])
                back.join()

        thread = threading.Thread(target=serve)
        thread.start()
        yield msgspec.structs.replace(ticket, port=listener.getsockname()[1]), *said
        thread.join()


async def test_what_is_heard_on_the_path_opens_nothing() -> None:
    """Neither key nor secret is said, and what is said serves for no other connection."""
    signer = FleetSigner(lambda: Keys((OLD,)), Refusals())
    settings = TransportSettings(io_seconds=5.0, connections=1, signer=signer)
    source, joiner = FACTORY.open(settings), FACTORY.open(settings)
    held, target = BytesMemory(LAYOUT, seed=1), BytesMemory(LAYOUT)
    ticket = wire.decode_ticket(await source.offer(grant("t"), held))
    with relay(ticket) as (by_relay, asked, answered):
        await joiner.pull(by_relay.encode(), [whole(LAYOUT)], target, Landings())
    assert target.storages == held.storages
    asking = b"".join(asked)
    for text in (asking, b"".join(answered)):
        assert OLD.secret not in text
        assert ticket.secret not in text
    with closing(socket.create_connection((ticket.host, ticket.port), timeout=5)) as sock:
        sock.sendall(asking)
        assert wire.read_answer(sock) == (Status.OK, wire.NOWHERE)
        wire.receive_by(sock, NUMBER_BYTES, time.monotonic() + 5)
        assert wire.read_answer(sock) == (Status.UNPROVEN, wire.NOWHERE)
    await joiner.aclose()
    await source.aclose()


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
    source = opened()
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
