"""What follows a proof: records of one session, one side and one place, and channels that carry them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldstart.channels import Channel
from coldstart.errors import TransportError
from coldstart.records import MAC_BYTES, MAX_RECORD, Reader, Writer

SECRET = b"s" * 32
SAID = (b"one", b"two", b"three")


def fed(data: bytes, reader: Reader) -> bytes:
    """What ``reader`` makes of ``data``, in pieces as it wants them."""
    told = b""
    while data:
        size = reader.wanted
        told += reader.feed(data[:size])
        data = data[size:]
    return told


def records(secret: bytes = SECRET) -> Sequence[bytes]:
    writer = Writer(secret, "joiner")
    return [writer.records(each) for each in SAID]


@given(st.lists(st.binary(min_size=1, max_size=40_000), max_size=5))
def test_what_is_said_is_what_is_read(said: Sequence[bytes]) -> None:
    writer, reader = Writer(SECRET, "source"), Reader(SECRET, "source", "the source")
    assert fed(b"".join(writer.records(each) for each in said), reader) == b"".join(said)


ONE, TWO, THREE = records()
ATTACKS = {
    "changed": bytes([*ONE[:3], ONE[3] ^ 1, *ONE[4:]]),
    "with another end": ONE[:-1] + bytes([ONE[-1] ^ 1]),
    "left out": TWO,
    "said twice": ONE + ONE,
    "in another order": ONE + THREE + TWO,
    "of another session": records(b"t" * 32)[0],
    "of the other side": Writer(SECRET, "source").records(SAID[0]),
    "shorter": bytes([0, 2]) + ONE[2:],
    "empty": bytes(2 + MAC_BYTES),
    "too long": (MAX_RECORD + 1).to_bytes(2, "big"),
    "far too long": b"\xff\xff",
}


@pytest.mark.parametrize("data", ATTACKS.values(), ids=ATTACKS.keys())
def test_what_is_not_the_next_record_of_its_side_is_refused(data: bytes) -> None:
    with pytest.raises(TransportError, match="what came from the joiner is not authentic: it ") as caught:
        fed(data, Reader(SECRET, "joiner", "the joiner"))
    assert caught.value.reason == "protocol"


def test_of_what_is_not_complete_nothing_counts() -> None:
    for size in range(len(ONE)):
        assert fed(ONE[:size], Reader(SECRET, "joiner", "the joiner")) == b""


# -------------------------------------------------------------------------------------- channels


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        yield Channel(ours), Channel(theirs)


def test_without_a_session_bytes_travel_as_they_are(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    one.send(b"frames", 1.0)
    assert one.try_send(b" and words")
    assert other.sock.recv(100) == b"frames and words"


def test_a_reader_takes_as_much_as_it_asks_for(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    assert other.hear(1) is None
    for authentic in (False, True):
        if authentic:
            one.authenticate(SECRET, "joiner", "the source")
            other.authenticate(SECRET, "source", "the joiner")
        one.send(b"abcdef", 1.0)
        assert (other.hear(1), other.receive(2, 1.0), other.hear(9)) == (b"a", b"bc", b"def")
        assert not other.waiting
    one.sock.close()
    assert other.hear(1) == b""


def test_one_that_waits_for_room_keeps_no_other_thread_waiting(ends: tuple[Channel, Channel]) -> None:
    """Nor does a word of that one get into the middle of its frame."""
    one, other = ends
    one.authenticate(SECRET, "joiner", "the source")
    other.authenticate(SECRET, "source", "the joiner")
    long = bytes(8 << 20)
    sending = threading.Thread(target=one.send, args=(long, 10.0))
    sending.start()
    while not one._sending.locked():
        pass
    assert not one.try_send(b"word")
    assert other.receive(len(long), 10.0) == long
    sending.join()
    assert one.try_send(b"word")
    assert other.receive(4, 1.0) == b"word"


def test_a_peer_that_trickles_gets_no_more_time(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    ended = threading.Event()

    def trickle() -> None:
        while not ended.wait(0.02):
            one.try_send(b"x")

    thread = threading.Thread(target=trickle)
    thread.start()
    with pytest.raises(TimeoutError):
        other.receive(10_000, 0.2)
    ended.set()
    thread.join()
