"""Sheets of lines: bounded, read by older versions, never a crash."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from coldstart.chronicle.lines import (
    MAX_BYTES,
    MAX_WORDS,
    VERSION,
    Detoured,
    Entered,
    Header,
    Withheld,
    pack,
    trace_of,
    unpack,
    words,
)
from coldstart.errors import BadMessage

HEADER = Header(start="s1", worker="w", shard="a" * 32, model="m@a/single", trace="0f" * 16, group="g", index=1, size=2)
LINE = Entered(at=1.5, phase="DISCOVER", state="Waiting", attempt=1, source="leader")


def test_what_is_packed_is_unpacked_with_its_numbers() -> None:
    (body,) = pack(HEADER, [(3, LINE), (4, Detoured(at=2.0, reason="b: stalled"))], 2.5)
    sheet, known = unpack(body)
    assert known == {3: LINE, 4: Detoured(at=2.0, reason="b: stalled")}
    assert (sheet.start, sheet.trace, sheet.group, sheet.index, sheet.size) == ("s1", "0f" * 16, "g", 1, 2)
    assert (sheet.sent, sheet.first) == (2.5, 3)


def test_a_gap_begins_another_sheet() -> None:
    bodies = list(pack(HEADER, [(1, LINE), (2, LINE), (9, LINE)], 2.0))
    assert [sorted(unpack(body)[1]) for body in bodies] == [[1, 2], [9]]


def test_no_sheet_is_too_large_and_none_is_empty() -> None:
    long = Detoured(at=0.0, reason=words("\x01" * 9999))  # each is six letters in JSON
    bodies = list(pack(HEADER, [(number, long) for number in range(1, 200)], 1e6))
    assert list(pack(HEADER, [], 1.0)) == []
    assert max(map(len, bodies)) <= MAX_BYTES
    assert [number for body in bodies for number in unpack(body)[1]] == list(range(1, 200))


def test_words_are_bounded_and_unicode() -> None:
    assert len(words("x" * 9999)) == MAX_WORDS
    assert words("/models/\udcff") == "/models/?"


def test_a_reader_leaves_out_what_it_does_not_know() -> None:
    (body,) = pack(HEADER, [(1, LINE), (2, Withheld(at=2.0))], 2.5)
    sheet = msgspec.json.decode(body)
    sheet["colour"] = "blue"
    sheet["lines"][0]["mood"] = "good"
    sheet["lines"].insert(1, {"kind": "sang", "at": 1.7, "song": "la"})
    assert unpack(msgspec.json.encode(sheet))[1] == {1: LINE, 3: Withheld(at=2.0)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": VERSION + 1}, "version"),
        ({"version": 0}, "version"),
        ({"worker": "../../etc"}, "no sheet"),
        ({"sent": -1.0}, "no sheet"),
        ({"sent": 1e300}, "no sheet"),
        ({"trace": "zz"}, "no sheet"),
        ({"model": "m" * 40_000}, "over"),
    ],
)
def test_what_is_no_sheet_says_why(change: dict[str, object], said: str) -> None:
    (body,) = pack(HEADER, [(1, LINE)], 2.5)
    with pytest.raises(BadMessage, match=said):
        unpack(msgspec.json.encode({**msgspec.json.decode(body), **change}))


@given(some.binary(max_size=300))
def test_any_bytes_are_a_sheet_or_a_bad_message(body: bytes) -> None:
    with pytest.raises(BadMessage):
        unpack(body)


@pytest.mark.parametrize(
    ("parent", "trace"),
    [
        (f"00-{'0f' * 16}-{'01' * 8}-01", "0f" * 16),
        (f"00-{'0' * 32}-{'01' * 8}-01", ""),
        ("", ""),
        ("00-zz-01-01", ""),
    ],
)
def test_the_id_of_a_trace(parent: str, trace: str) -> None:
    assert trace_of(parent) == trace
