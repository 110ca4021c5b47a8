"""What the bytes are called changes with everything that changes them; a truth is taken only as announced."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldstart import identity
from coldstart.errors import IntegrityError
from coldstart.identity import DIGEST_BYTES, ModelVersion, Rank, Shard, Truth, decode_truth, is_id
from coldstart.layout import Layout
from coldstart.testing.memories import layout_of

MODEL = ModelVersion("llama", "ab" * 16, "transformers/5", "bfloat16", "r1")
SHARD = Shard(MODEL, Rank(tp=1, tp_size=2, pp=1, pp_size=2, ep=1, ep_size=2, dp=1))
LAYOUT = layout_of(1000, 5000, chunk_bytes=1024)
TRUTH = Truth(SHARD.key, LAYOUT, "csfp1", bytes(range(LAYOUT.chunks)) * DIGEST_BYTES)


# ------------------------------------------------------------------------------------------ shards


@pytest.mark.parametrize(
    "changed",
    [
        Shard(msgspec.structs.replace(MODEL, checkpoint="cd" * 16), SHARD.rank),
        Shard(msgspec.structs.replace(MODEL, skeleton="tensors/1"), SHARD.rank),
        Shard(msgspec.structs.replace(MODEL, dtype=""), SHARD.rank),
        Shard(msgspec.structs.replace(MODEL, revision=""), SHARD.rank),
        *(
            Shard(MODEL, msgspec.structs.replace(SHARD.rank, **{field: 3}))
            for field in Rank.__struct_fields__
            if field != "role"
        ),
        Shard(MODEL, msgspec.structs.replace(SHARD.rank, role="draft")),
    ],
)
def test_everything_that_changes_the_bytes_changes_the_key(changed: Shard) -> None:
    assert changed.key != SHARD.key


def test_every_field_of_the_identity_is_covered_by_the_test_above() -> None:
    assert ModelVersion.__struct_fields__ == ("name", "checkpoint", "skeleton", "dtype", "revision")
    assert Shard.__struct_fields__ == ("model", "rank")


def test_the_name_is_for_people_only() -> None:
    assert Shard(msgspec.structs.replace(MODEL, name="other"), SHARD.rank).key == SHARD.key


def test_values_cannot_slip_from_one_field_into_the_next() -> None:
    one = Shard(ModelVersion("m", "ab", "c", "d", ""))
    other = Shard(ModelVersion("m", "ab", "c", "", "d"))
    assert one.key != other.key


def test_a_key_is_an_id_of_32_hex_digits() -> None:
    assert len(SHARD.key) == 32
    assert set(SHARD.key) <= set("0123456789abcdef")
    assert is_id(SHARD.key)


@pytest.mark.parametrize(
    ("rank", "words"),
    [
        (Rank(), "single"),
        (Rank(tp=1, tp_size=4), "tp1of4"),
        (Rank(tp_size=2, pp=1, pp_size=2, ep=3, ep_size=8, dp=2, role="draft"), "tp0of2-pp1of2-ep3of8-dp2-draft"),
    ],
)
def test_a_rank_says_only_what_is_not_the_default(rank: Rank, words: str) -> None:
    assert str(rank) == words


@pytest.mark.parametrize("name", ["a", "A.b_c:d-9", "x" * 96])
def test_ids(name: str) -> None:
    assert is_id(name)


@pytest.mark.parametrize("name", ["", "a\n", "a/b", "..\\", "a b", "{a}", "x" * 97, "é"])
def test_what_is_no_id(name: str) -> None:
    assert not is_id(name)


# ------------------------------------------------------------------------------------------- truth


def test_a_truth_comes_back_as_it_was_published() -> None:
    assert decode_truth(TRUTH.encode(), shard=SHARD.key, root=TRUTH.root) == TRUTH
    assert b"".join(TRUTH.digest(chunk) for chunk in range(LAYOUT.chunks)) == TRUTH.digests


@pytest.mark.parametrize(
    "changed",
    [
        msgspec.structs.replace(TRUTH, shard="0" * 32),
        msgspec.structs.replace(TRUTH, layout=layout_of(1000, 5001, chunk_bytes=1024)),
        msgspec.structs.replace(TRUTH, algorithm="csfp2"),
        msgspec.structs.replace(TRUTH, digests=b"\x01" + TRUTH.digests[1:]),
    ],
    ids=["shard", "layout", "algorithm", "digests"],
)
def test_every_field_of_a_truth_changes_its_root_and_another_root_is_refused(changed: Truth) -> None:
    assert changed.root != TRUTH.root
    with pytest.raises(IntegrityError, match="announced root"):
        decode_truth(changed.encode(), shard=SHARD.key, root=TRUTH.root)


def test_the_truth_of_another_shard_is_refused() -> None:
    with pytest.raises(IntegrityError, match="announced root"):
        decode_truth(TRUTH.encode(), shard="0" * 32, root=TRUTH.root)


@pytest.mark.parametrize("digests", [b"", TRUTH.digests[:-1], TRUTH.digests + bytes(DIGEST_BYTES)])
def test_digests_for_another_number_of_chunks_are_refused(digests: bytes) -> None:
    odd = msgspec.structs.replace(TRUTH, digests=digests)
    with pytest.raises(IntegrityError, match="wrong number of chunks"):
        decode_truth(odd.encode(), shard=SHARD.key, root=odd.root)


@pytest.mark.parametrize(
    "layout",
    [
        Layout((), (1000,), 0),
        Layout((), (1000,), -1),
        Layout((), (1000, 0), 1024),
        Layout((), (1000, -5000), 1024),
    ],
)
def test_a_layout_that_cannot_be_is_refused(layout: Layout) -> None:
    odd = msgspec.structs.replace(TRUTH, layout=layout)
    with pytest.raises(IntegrityError):
        decode_truth(odd.encode(), shard=SHARD.key, root=odd.root)


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\xdf\xff\xff\xff\xff", b"\x91" * 100_000, msgspec.msgpack.encode({"shard": SHARD.key})]
)
def test_a_malformed_truth_is_refused(data: bytes) -> None:
    with pytest.raises(IntegrityError, match="malformed"):
        decode_truth(data, shard=SHARD.key, root=TRUTH.root)


def test_a_truth_that_is_too_large_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "MAX_TRUTH_BYTES", len(TRUTH.encode()) - 1)
    with pytest.raises(IntegrityError, match="over the limit"):
        decode_truth(TRUTH.encode(), shard=SHARD.key, root=TRUTH.root)


@given(st.binary(max_size=2048))
def test_arbitrary_bytes_are_never_a_truth(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        decode_truth(data, shard=SHARD.key, root=TRUTH.root)


@given(st.integers(0, len(TRUTH.encode()) - 1), st.integers(1, 255))
def test_a_damaged_truth_is_refused(at: int, change: int) -> None:
    data = bytearray(TRUTH.encode())
    data[at] ^= change
    with pytest.raises(IntegrityError):
        decode_truth(bytes(data), shard=SHARD.key, root=TRUTH.root)
