"""Messages: what goes in comes out; whatever else comes is a BadMessage, quickly, and nothing more."""

from __future__ import annotations

import time
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldstart.errors import BadMessage
from coldstart.messages import (
    MAX_BYTES,
    VERSION,
    Accept,
    AnyMessage,
    Departure,
    Done,
    Drain,
    Hello,
    Knock,
    Offer,
    Present,
    Refusal,
    decode,
    encode,
)

IDS = st.from_regex(r"\A[A-Za-z0-9_.:-]{1,96}\Z")
NUMBERS = st.integers(0, 2**63 - 1)
NAMES = st.from_regex(r"\A[a-z0-9-]{1,32}\Z")
MESSAGES: st.SearchStrategy[AnyMessage] = st.one_of(
    st.builds(
        Hello,
        transfer=IDS,
        joiner=IDS,
        number=NUMBERS,
        layout=st.from_regex(r"\A[0-9a-f]{0,64}\Z"),
        transports=st.lists(NAMES, max_size=16).map(tuple),
        trace=st.text(max_size=256),
        favours=st.dictionaries(st.text(max_size=256), st.lists(NAMES, max_size=16).map(tuple), max_size=32),
    ),
    st.builds(
        Offer,
        transfer=IDS,
        answer=NUMBERS,
        number=NUMBERS,
        transport=NAMES,
        ticket=st.binary(max_size=256),
        generation=NUMBERS,
    ),
    st.builds(Refusal, transfer=IDS, answer=NUMBERS, reason=st.text(max_size=512)),
    st.builds(Accept, transfer=IDS, answer=NUMBERS),
    st.builds(Done, transfer=IDS, outcome=st.text(max_size=512)),
    st.builds(Drain, transfer=IDS, asker=IDS, number=NUMBERS),
    st.builds(Departure, transfer=IDS, answer=NUMBERS, transfers=NUMBERS, over=st.booleans()),
    st.builds(Knock, transfer=IDS, asker=IDS, number=NUMBERS, held=NUMBERS, host=st.text(max_size=256)),
    st.builds(Present, transfer=IDS, answer=NUMBERS, held=NUMBERS),
)
ACCEPT = {"type": "accept", "transfer": "t", "version": VERSION, "answer": 1}
HELLO = {
    "type": "hello",
    "transfer": "t",
    "version": VERSION,
    "joiner": "j",
    "number": 1,
    "layout": "aa",
    "transports": ["tcp"],
}


def packed(message: object) -> bytes:
    return msgspec.msgpack.encode(message)


def tree(depth: int) -> bytes:
    """An accept whose answer is an array nested so deep."""
    return b"\x82\xa4type\xa6accept\xa6answer" + b"\x91" * depth + b"\xc0"


def padded(field: str, value: bytes) -> bytes:
    """An accept with a field more, which claims to be larger than it is."""
    return b"\x82\xa4type\xa6accept" + packed(field) + value


# ---------------------------------------------------------------------------------------- the good


@given(MESSAGES)
def test_every_message_survives_the_wire(message: AnyMessage) -> None:
    assert decode(encode(message)) == message


def test_the_largest_ticket_fits() -> None:
    offer = Offer(transfer="t", answer=1, number=1, transport="tcp", ticket=b"x" * 16 * 1024, generation=1)
    assert decode(encode(offer)) == offer


def test_fields_of_a_newer_worker_are_ignored() -> None:
    assert decode(packed({**ACCEPT, "colour": "blue"})) == Accept(transfer="t", answer=1)


# ----------------------------------------------------------------------------------------- the bad


@given(st.binary(max_size=4096))
def test_arbitrary_bytes_are_a_message_or_a_bad_one(body: bytes) -> None:
    with suppress(BadMessage):
        assert isinstance(decode(body), AnyMessage)


@given(MESSAGES, st.data())
def test_damaged_messages_are_a_message_or_a_bad_one(message: AnyMessage, data: st.DataObject) -> None:
    body = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BadMessage):
        decode(bytes(body[: data.draw(st.integers(0, len(body)))]))


MAPPINGS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=10,
)
FIELDS = st.sampled_from([*HELLO, "favours", "answer", "ticket", "transport", "generation", "reason", "outcome"])


@given(st.sampled_from([ACCEPT, HELLO]), FIELDS, MAPPINGS)
def test_well_formed_nonsense_is_a_message_or_a_bad_one(
    message: dict[str, object], field: str, value: object
) -> None:
    with suppress(BadMessage):
        decode(packed({**message, field: value}))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        packed(None),
        packed([]),
        packed({}),
        packed([ACCEPT]),
        packed({**ACCEPT, "type": "bid"}),
        packed({**ACCEPT, "type": 7}),
        packed({key: value for key, value in ACCEPT.items() if key != "type"}),
        packed({key: value for key, value in ACCEPT.items() if key != "transfer"}),
        packed({**ACCEPT, "version": VERSION + 1}),
        packed({**ACCEPT, "version": 0}),
        packed({**ACCEPT, "version": "1"}),
        packed(ACCEPT) + b"\x00",
        packed(ACCEPT) * 2,
        packed(ACCEPT)[:-1],
        packed({**ACCEPT, "answer": -1}),
        packed({**ACCEPT, "answer": 2**63}),
        packed({**ACCEPT, "answer": 1.5}),
        packed({**ACCEPT, "answer": "1"}),
        packed({**HELLO, "transports": ["tcp"] * 17}),
        packed({**HELLO, "transports": ["TCP"]}),
        packed({**HELLO, "transports": ["tcp\n"]}),
        packed({**HELLO, "layout": "aa\n"}),
        packed({**HELLO, "layout": "a" * 65}),
        packed({**HELLO, "trace": "x" * 257}),
        packed({**HELLO, "favours": {f"h{number}": ["tcp"] for number in range(33)}}),
        packed({**HELLO, "favours": {"h" * 257: ["tcp"]}}),
        packed({**HELLO, "favours": {"h": ["tcp"] * 17}}),
        packed({**HELLO, "favours": {"h": ["TCP"]}}),
        packed({**ACCEPT, "type": "done", "outcome": "x" * 513}),
        packed({**ACCEPT, "type": "offer", "number": 1, "transport": "tcp", "ticket": b"x" * 16385, "generation": 1}),
        b"\x81\xa4type\xa6accep\xff",
    ],
)
def test_what_is_not_exactly_a_message_is_refused(body: bytes) -> None:
    with pytest.raises(BadMessage):
        decode(body)


@pytest.mark.parametrize(
    "name",
    ["", "a\n", "\na", "../../etc/passwd", "a/b", "a b", "a\x00", "{a}", "a*", "x" * 97, "ä", "a\r\nSET k v"],
)
@pytest.mark.parametrize("field", ["transfer", "joiner"])
def test_ids_are_never_paths_keys_or_lines(field: str, name: str) -> None:
    with pytest.raises(BadMessage):
        decode(packed({**HELLO, field: name}))


@pytest.mark.parametrize(
    "body",
    [
        padded("answer", b"\xdd\xff\xff\xff\xff"),
        padded("answer", b"\xdf\xff\xff\xff\xff"),
        padded("transfer", b"\xdb\xff\xff\xff\xff"),
        padded("transfer", b"\xc6\xff\xff\xff\xff"),
        padded("unknown", b"\xdd\xff\xff\xff\xff"),
        padded("unknown", b"\xdf\xff\xff\xff\xff"),
        padded("unknown", b"\xc6\xff\xff\xff\xff"),
        padded("unknown", b"\xc9\xff\xff\xff\xff\x01"),
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        tree(10**4),
        tree(10**5),
        tree(MAX_BYTES - 30),
        b"\x82\xa4type\xa6accept\xa7unknown" + b"\x91" * 60_000 + b"\xc0",
        b"\x91" * 60_000,
        b"\x81" * 60_000,
        b"\x00" * (MAX_BYTES + 1),
    ],
)
def test_bombs_are_refused_at_once(body: bytes) -> None:
    began = time.perf_counter()
    with pytest.raises(BadMessage):
        decode(body)
    assert time.perf_counter() - began < 0.5


def test_what_every_receiver_would_refuse_is_not_sent() -> None:
    with pytest.raises(BadMessage, match="over"):
        encode(Refusal(transfer="t", answer=1, reason="x" * MAX_BYTES))


def test_the_error_names_the_version_it_does_not_speak() -> None:
    with pytest.raises(BadMessage, match="version 9"):
        decode(packed({**ACCEPT, "version": 9}))
