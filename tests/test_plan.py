"""Sets of chunks behave as sets; plans cover what they should."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldstart.layout import merged
from coldstart.plan import Chunks, Limits, payload_of, spans_of
from coldstart.testing.memories import layout_of

SETS = st.sets(st.integers(0, 200), max_size=20)
LAYOUT = layout_of(1000, 1, 5000, 257, chunk_bytes=512)


@given(SETS, SETS, st.integers(0, 200))
def test_chunks_are_sets_of_numbers(ours: set[int], theirs: set[int], chunk: int) -> None:
    mine, others = Chunks.of(ours), Chunks.of(theirs)
    assert list(mine) == sorted(ours)
    assert len(mine) == len(ours)
    assert bool(mine) == bool(ours)
    assert (chunk in mine) == (chunk in ours)
    assert set(mine | others) == ours | theirs
    assert set(mine - others) == ours - theirs
    assert set(mine.add(chunk)) == ours | {chunk}


def test_the_first_chunks() -> None:
    assert list(Chunks.first(3)) == [0, 1, 2]
    assert not Chunks.first(0)


@given(st.sets(st.integers(0, LAYOUT.chunks - 1)))
def test_spans_of_chunks_cover_them_exactly_and_neighbours_are_merged(chunks: set[int]) -> None:
    spans = spans_of(LAYOUT, Chunks.of(chunks))
    assert spans == merged(LAYOUT.chunk(chunk) for chunk in chunks)
    assert sum(span.length for span in spans) == sum(LAYOUT.chunk(chunk).length for chunk in chunks)


@given(st.sets(st.integers(0, LAYOUT.chunks - 1)))
def test_payloads_add_up_without_padding(chunks: set[int]) -> None:
    some = Chunks.of(chunks)
    rest = Chunks.first(LAYOUT.chunks) - some
    assert payload_of(LAYOUT, some) + payload_of(LAYOUT, rest) == LAYOUT.payload


def test_the_budget_holds_a_whole_handshake_and_a_whole_stall() -> None:
    limits = Limits()
    assert limits.patience >= limits.answer + limits.stall
    with pytest.raises(AttributeError):
        limits.patience = 1.0  # type: ignore[misc]
