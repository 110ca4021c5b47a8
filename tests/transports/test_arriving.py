"""Bytes of a request that come in any pieces: every read is whole once, in order, and has its own bytes."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from coldstart.layout import Piece, Span
from coldstart.transports.arriving import Arriving
from coldstart.transports.reads import Read, Request

START = 1000
SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=30)


def request(lengths: list[int]) -> Request:
    reads, at = list[Read](), 0
    for length in lengths:
        reads.append(Read(Path("f"), START + at, (Piece(0, at, length, at),), Span(at, length)))
        at += length
    return Request(Path("f"), START, at, tuple(reads))


@given(SIZES, SIZES)
def test_every_read_has_its_bytes_as_soon_as_they_are_here(lengths: list[int], pieces: list[int]) -> None:
    asked = request(lengths)
    content = memoryview(bytes(number % 251 for number in range(asked.length)))
    arriving, found, came = Arriving(asked), list[Read](), 0
    while came < asked.length:
        piece = content[came : came + pieces[came % len(pieces)]]
        came += len(piece)
        at, whole = arriving.add(piece)
        for read in whole:
            assert at == read.offset
            view = bytearray(read.length)
            arriving.take(at, memoryview(view))
            assert view == content[at - START : at - START + read.length]
            at += read.length
        found += whole
        assert arriving.end == START + came
        due = [read for read in asked.reads if read.offset + read.length <= arriving.end]
        assert found == due
    assert found == list(asked.reads)
