"""What tests of transfers share."""

from __future__ import annotations

from coldstart.testing.transfers import Content


def test_contents_are_equal_as_their_bytes_are() -> None:
    assert Content(b"abc") == Content(b"abc") == b"abc"
    assert Content(b"abc") != Content(b"abd")
    assert hash(Content(b"abc")) == hash(Content(b"abc"))
    assert b"bc" in Content(b"abc")
    assert b"cb" not in Content(b"abc")


def test_megabytes_that_differ_are_told_in_a_line() -> None:
    """A test that fails on them must end: with ``CI`` set, pytest compares sequences item by item."""
    told = repr(Content(bytes(1 << 22)))
    assert told.startswith("<4194304 bytes, sha256 ")
    assert len(told) < 60
