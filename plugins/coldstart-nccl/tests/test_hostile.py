"""Strangers and liars at the control port, and sources that lie: each gets an error, and costs little."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import anyio
import anyio.to_thread
import msgspec
import pytest
from coldstart_nccl import GLOO, listener, wire
from coldstart_nccl.communicator import RECEIVER
from coldstart_nccl.gloo import GlooBackend
from coldstart_nccl.transport import CollectiveTransport
from coldstart_nccl.wire import Answer, Ticket, Word

from coldstart.channels import Channel
from coldstart.errors import TransportError
from coldstart.layout import Span
from coldstart.ports import TransportSettings
from coldstart.testing.memories import BytesMemory, layout_of
from coldstart.testing.transfers import Landings, eventually, grant, whole

LAYOUT = layout_of(5000, 300)
SETTINGS = TransportSettings(io_seconds=1.0)


def connected(ticket: Ticket) -> socket.socket:
    return socket.create_connection((ticket.host, ticket.port), timeout=5)


async def still_lends(source: CollectiveTransport) -> None:
    held, target = BytesMemory(LAYOUT, seed=2), BytesMemory(LAYOUT)
    with anyio.fail_after(10):
        await source.pull(await source.offer(grant("u"), held), [whole(LAYOUT)], target, Landings())
    assert target.storages == held.storages


def answered(ticket: Ticket, hello: bytes, frames: bytes = b"", *, paired: bool = False) -> bytes:
    """All that the source has to say to ``hello`` and ``frames``, until it closes; in between, build the pair."""
    with connected(ticket) as sock:
        sock.sendall(hello)
        if paired:
            answer = wire.read_answer(Channel(sock), 5)
            sock.settimeout(5)
            pair = GlooBackend().connect(RECEIVER, answer.invitation, "cpu", largest=1, ctas=0)
            while not pair.ready():
                time.sleep(0.001)
        sock.sendall(frames)
        sock.shutdown(socket.SHUT_WR)
        data = b""
        with_more = True
        while with_more:
            try:
                more = sock.recv(4096)
            except ConnectionResetError:
                break
            data, with_more = data + more, bool(more)
        return data


ASK = bytes([Word.ASK])


def batch(count: int, more: bool, *spans: tuple[int, int]) -> bytes:
    return wire._BATCH.pack(count, more) + b"".join(wire._SPAN.pack(*span) for span in spans)


HUGE = 2**64 - 1
REQUESTS = {
    "nothing": batch(0, False),
    "too many in a batch": batch(1025, False),
    "an empty span": batch(1, False, (0, 0)),
    "beyond the end": batch(1, False, (0, LAYOUT.nbytes + 1)),
    "beyond all ends": batch(1, False, (HUGE, HUGE)),
    "too many in all": b"".join(batch(1024, True, *[(0, 1)] * 1024) for _ in range(65)),
}


@pytest.mark.parametrize("frames", REQUESTS.values(), ids=REQUESTS.keys())
async def test_a_request_out_of_bounds_is_refused(frames: bytes) -> None:
    source = GLOO.open(SETTINGS)
    ticket = wire.decode_ticket(await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1)))
    said = await anyio.to_thread.run_sync(partial(answered, ticket, wire.hello(ticket), ASK + frames, paired=True))
    said = said.removeprefix(bytes([Word.READY]))
    assert said in (bytes([Word.BAD_REQUEST]), b""), "reset, where it was not read to its end"
    await eventually(lambda: not source.reading("t"))
    await still_lends(source)
    await source.aclose()


STRANGE = [b"", b"GET / HTTP/1.1\r\n\r\n" * 4, wire._MAGIC, b"\x00" * 36, wire._MAGIC + b"x" * 32]


@pytest.mark.parametrize("words", STRANGE)
async def test_a_stranger_gets_nothing(words: bytes) -> None:
    source = GLOO.open(SETTINGS)
    ticket = wire.decode_ticket(await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1)))
    said = await anyio.to_thread.run_sync(answered, ticket, words)
    assert said in (b"", bytes([Word.REFUSED]))
    assert not source.reading("t")
    await still_lends(source)
    await source.aclose()


async def test_a_wrong_secret_gets_nothing() -> None:
    source = GLOO.open(SETTINGS)
    ticket = wire.decode_ticket(await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1)))
    forged = msgspec.structs.replace(ticket, secret=bytes(16))
    with pytest.raises(TransportError, match="does not know this ticket") as caught:
        await source.pull(forged.encode(), [whole(LAYOUT)], BytesMemory(LAYOUT), Landings())
    assert caught.value.reason == "refused"
    await source.aclose()


async def test_many_silent_strangers_do_not_keep_a_joiner_out() -> None:
    source = GLOO.open(SETTINGS)
    ticket = wire.decode_ticket(await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1)))
    strangers = [connected(ticket) for _ in range(listener.MAX_STRANGERS + 20)]
    await still_lends(source)
    assert sum("coldstart-nccl-source" in thread.name for thread in threading.enumerate()) <= listener.MAX_STRANGERS
    for stranger in strangers:
        stranger.close()
    await source.aclose()


async def test_a_joiner_that_says_nothing_more_is_left() -> None:
    """Where it never comes to the pair, and in the middle of its request: each ends by the stall clock."""
    source = GLOO.open(SETTINGS)
    ticket = wire.decode_ticket(await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1)))
    for frames in (wire.hello(ticket), wire.hello(ticket) + ASK + batch(1, False, (0, 100))[:-1]):
        with connected(ticket) as sock:
            sock.sendall(frames)
            await eventually(lambda: source.reading("t"))
            await eventually(lambda: not source.reading("t"), 5)
    await still_lends(source)
    await source.aclose()


async def test_more_pairs_than_one_pull_needs_are_refused() -> None:
    source = GLOO.open(SETTINGS)
    ticket = wire.decode_ticket(await source.offer(grant("t"), BytesMemory(LAYOUT, seed=1)))
    with connected(ticket) as first, connected(ticket) as second:
        for sock in (first, second):
            sock.sendall(wire.hello(ticket))
        await eventually(lambda: source.reading("t"))
        with pytest.raises(TransportError, match="too many connections"):
            await eventually_pulls(source, ticket)
    await source.aclose()


async def eventually_pulls(source: CollectiveTransport, ticket: Ticket) -> None:
    """Pull until it fails: the other callers need a moment to be admitted."""
    with anyio.fail_after(0.9):
        while True:
            await source.pull(ticket.encode(), [whole(LAYOUT)], BytesMemory(LAYOUT), Landings())


# ------------------------------------------------------------------------------- a source that lies


@contextmanager
def liar(speak: Callable[[socket.socket], None]) -> Iterator[bytes]:
    """A ticket of a source that takes one call and says what it likes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)

        def serve() -> None:
            sock, _ = server.accept()
            with sock:
                speak(sock)

        thread = threading.Thread(target=serve)
        thread.start()
        yield Ticket(host="127.0.0.1", port=server.getsockname()[1], secret=bytes(16), transfer="t").encode()
        thread.join()


def until_closed(sock: socket.socket) -> None:
    sock.settimeout(10)
    try:
        while sock.recv(4096):
            pass
    except OSError:
        return


def says(data: bytes) -> Callable[[socket.socket], None]:
    def speak(sock: socket.socket) -> None:
        sock.sendall(data)
        until_closed(sock)

    return speak


def trickles(sock: socket.socket) -> None:
    """A byte now and then: a joiner's patience is for all of the answer."""
    try:
        for byte in Answer(Word.OK, 1 << 20, 0, b"x" * 100).encode():
            sock.sendall(bytes([byte]))
            time.sleep(0.2)
    except OSError:
        return


LIES = {
    "nothing": (says(b""), "timeout"),
    "no word": (says(b"\xff"), "protocol"),
    "tiny messages": (says(Answer(Word.OK, 1, 0, b"").encode()), "protocol"),
    "enormous messages": (says(Answer(Word.OK, 2**32 - 1, 0, b"").encode()), "protocol"),
    "too many blocks": (says(Answer(Word.OK, 1 << 20, 33, b"").encode()), "protocol"),
    "a long invitation": (says(Answer(Word.OK, 1 << 20, 0, b"x" * 1025).encode()), "protocol"),
    "an invitation elsewhere": (says(Answer(Word.OK, 1 << 20, 0, b"coldstart-gloo-/../../x").encode()), "protocol"),
    "an invitation and nobody there": (says(Answer(Word.OK, 1 << 20, 0, b"coldstart-gloo-liar").encode()), "timeout"),
    "it is done": (says(Answer(Word.OK, 1 << 20, 0, b"coldstart-gloo-liar").encode() + bytes([Word.DONE])), "timeout"),
    "slowly": (trickles, "timeout"),
}


@pytest.mark.parametrize(("speak", "reason"), LIES.values(), ids=LIES.keys())
async def test_a_source_that_lies_is_left(speak: Callable[[socket.socket], None], reason: str) -> None:
    joiner, target = GLOO.open(SETTINGS), BytesMemory(LAYOUT, fill=0xAA)
    with liar(speak) as ticket, anyio.fail_after(8):
        with pytest.raises(TransportError) as caught:
            await joiner.pull(ticket, [Span(0, 100)], target, Landings())
        await joiner.aclose()
    assert caught.value.reason == reason
    assert target.storages[0] == b"\xaa" * 5000
