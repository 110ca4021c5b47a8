"""The stream: chunks, spans, pieces and gaps cover it exactly; differences are said in words."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldstart.layout import (
    ALIGNMENT,
    CHUNK_UNIT,
    MAX_CHUNK,
    MIN_CHUNK,
    Layout,
    Span,
    Tensor,
    align,
    chunk_bytes_for,
    differences,
    gaps,
    merged,
)

SPANS = st.lists(st.builds(Span, st.integers(0, 300), st.integers(0, 60)), max_size=12)
LAYOUTS = st.builds(
    lambda sizes, chunk: Layout((), tuple(sizes), chunk),
    st.lists(st.integers(1, 3000), max_size=12),
    st.sampled_from([1, 100, 256, 1024, 4096]),
)


def tensor(name: str, *shape: int, storage: int = 0, offset: int = 0, dtype: str = "float32") -> Tensor:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= size
    return Tensor(name, dtype, shape, tuple(reversed(stride)), storage, offset)


def layout(*tensors: Tensor, storages: tuple[int, ...] = (64, 64), chunk_bytes: int = 1024) -> Layout:
    return Layout(tensors, storages, chunk_bytes)


def covered(spans: tuple[Span, ...]) -> set[int]:
    return {byte for span in spans for byte in range(span.offset, span.end)}


# ----------------------------------------------------------------------------------------- arithmetic


@given(SPANS)
def test_merged_covers_the_same_bytes_with_gaps_between(spans: list[Span]) -> None:
    result = merged(spans)
    assert covered(result) == covered(tuple(spans))
    assert all(left.end < right.offset for left, right in pairwise(result))
    assert all(span.length > 0 for span in result)
    assert merged(result) == result


@given(SPANS, st.builds(Span, st.integers(0, 100), st.integers(200, 300)))
def test_spans_and_their_gaps_make_the_whole(spans: list[Span], whole: Span) -> None:
    within = [span for span in spans if whole.offset <= span.offset and span.end <= whole.end]
    missing = gaps(within, whole)
    assert covered(missing) | covered(tuple(within)) == covered((whole,))
    assert not covered(missing) & covered(tuple(within))
    assert merged([*missing, *within]) == (whole,)


@given(LAYOUTS)
def test_chunks_cover_the_stream_exactly(layout: Layout) -> None:
    chunks = [layout.chunk(index) for index in range(layout.chunks)]
    assert merged(chunks) == ((Span(0, layout.nbytes),) if layout.nbytes else ())
    assert sum(chunk.length for chunk in chunks) == layout.nbytes
    assert all(0 < chunk.length <= layout.chunk_bytes for chunk in chunks)
    for outside in (-1, layout.chunks):
        with pytest.raises(IndexError):
            layout.chunk(outside)


@given(LAYOUTS)
def test_storages_are_aligned_and_do_not_overlap(layout: Layout) -> None:
    assert all(start % ALIGNMENT == 0 for start in layout.starts)
    ends = [start + size for start, size in zip(layout.starts, layout.storages, strict=True)]
    assert all(end <= start for end, start in zip(ends, layout.starts[1:], strict=False))
    assert layout.nbytes == align(ends[-1] if ends else 0)
    assert layout.payload == sum(layout.storages)


@given(LAYOUTS, st.data())
def test_pieces_are_exactly_the_weights_of_a_span(layout: Layout, data: st.DataObject) -> None:
    low = data.draw(st.integers(0, layout.nbytes))
    span = Span(low, data.draw(st.integers(0, layout.nbytes - low)))
    pieces = list(layout.pieces(span))
    expected = {
        byte
        for start, size in zip(layout.starts, layout.storages, strict=True)
        for byte in range(max(start, span.offset), min(start + size, span.end))
    }
    found = [byte for piece in pieces for byte in range(piece.offset, piece.offset + piece.length)]
    assert found == sorted(expected)
    for piece in pieces:
        assert piece.offset == layout.starts[piece.storage] + piece.within
        assert piece.within + piece.length <= layout.storages[piece.storage]


@given(LAYOUTS, st.data())
def test_weights_are_the_pieces_joined(layout: Layout, data: st.DataObject) -> None:
    low = data.draw(st.integers(0, layout.nbytes))
    span = Span(low, data.draw(st.integers(0, layout.nbytes - low)))
    assert tuple(layout.weights(span)) == merged(Span(piece.offset, piece.length) for piece in layout.pieces(span))



@given(st.integers(0, 10**13))
def test_chunks_are_whole_digest_rows_and_not_too_many(nbytes: int) -> None:
    size = chunk_bytes_for(nbytes)
    assert MIN_CHUNK <= size <= MAX_CHUNK
    assert size % CHUNK_UNIT == 0
    assert size & (size - 1) == 0
    assert nbytes / size <= 128 or size == MAX_CHUNK


def test_an_empty_layout_has_no_bytes_and_no_chunks() -> None:
    empty = Layout((tensor("e", 0, storage=-1),), (), MIN_CHUNK)
    assert (empty.nbytes, empty.payload, empty.chunks) == (0, 0, 0)
    assert list(empty.pieces(Span(0, 100))) == []


# ------------------------------------------------------------------------------ sameness, in words

HERE = layout(tensor("a", 2, 3), tensor("b", 4, storage=1))


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (layout(tensor("a", 2, 3)), "b: here float32 4, there absent"),
        (layout(*HERE.tensors, tensor("c", 5)), "c: here absent, there float32 5"),
        (layout(tensor("a", 3, 2), HERE.tensors[1]), "a: here float32 2x3, there float32 3x2"),
        (layout(tensor("a", 2, 3, dtype="int8"), HERE.tensors[1]), "a: here float32 2x3, there int8 2x3"),
        (
            layout(Tensor("a", "float32", (2, 3), (1, 2), 0, 0), HERE.tensors[1]),
            "a: here float32 2x3, there float32 2x3 stride [1, 2]",
        ),
        (layout(tensor("a"), HERE.tensors[1]), "a: here float32 2x3, there float32 scalar"),
        (layout(*reversed(HERE.tensors)), "order: position 0 is a here, b there"),
        (
            layout(HERE.tensors[0], tensor("b", 4, storage=0)),
            "b: aliases or views another storage (here 1+0, there 0+0)",
        ),
        (
            layout(HERE.tensors[0], tensor("b", 4, storage=1, offset=8)),
            "b: aliases or views another storage (here 1+0, there 1+8)",
        ),
        (layout(*HERE.tensors, storages=(64, 128)), "storage 1: 64 bytes here, 128 there"),
        (layout(*HERE.tensors, storages=(64, 64, 1)), "2 storages here, 3 there"),
        (layout(*HERE.tensors, chunk_bytes=2048), "chunks of 1024 bytes here, 2048 there"),
        (layout(*HERE.tensors, HERE.tensors[1]), "2 tensors here, 3 there"),
        (layout(HERE.tensors[0], HERE.tensors[0], HERE.tensors[1]), "order: position 1 is b here, a there"),
    ],
)
def test_every_kind_of_difference_is_said_in_words_and_changes_the_digest(there: Layout, words: str) -> None:
    assert differences(HERE, there) == (words,)
    assert differences(there, HERE)
    assert there.digest != HERE.digest


def test_equal_layouts_have_no_differences_and_one_digest() -> None:
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(HERE), type=Layout)
    assert differences(HERE, again) == ()
    assert again.digest == HERE.digest


def test_only_the_first_differences_are_named_and_the_rest_counted() -> None:
    here = layout(*(tensor(f"t{index}", 1) for index in range(10)))
    there = layout(*(tensor(f"t{index}", 2) for index in range(10)))
    found = differences(here, there, limit=3)
    assert len(found) == 4
    assert found[0] == "t0: here float32 1, there float32 2"
    assert found[-1] == "and 7 more"


TENSORS = st.builds(
    Tensor,
    st.sampled_from("abc"),
    st.sampled_from(["float32", "int8"]),
    st.lists(st.integers(0, 3), max_size=2).map(tuple),
    st.lists(st.integers(0, 3), max_size=2).map(tuple),
    st.integers(-1, 2),
    st.integers(0, 2),
)
ANY_LAYOUTS = st.builds(
    Layout, st.lists(TENSORS, max_size=4).map(tuple), st.lists(st.integers(1, 3), max_size=3).map(tuple), st.just(1024)
)


@given(ANY_LAYOUTS, ANY_LAYOUTS)
def test_a_difference_is_found_exactly_where_there_is_one(mine: Layout, theirs: Layout) -> None:
    """Also in layouts that nobody could have built, since a peer may have sent one."""
    assert bool(differences(mine, theirs)) == (mine != theirs) == (mine.digest != theirs.digest)
