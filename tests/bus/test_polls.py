"""What a store says of a vote is a tally or nonsense."""

from __future__ import annotations

import pytest

from coldstart.bus import polls
from coldstart.errors import BusError
from coldstart.group import Tally, Verdict


def test_verdicts_are_read_in_the_order_of_their_questions() -> None:
    reply = [3, 0, b"ready", b"0\n2\nwhy\nnot", b"path", b"1\n\n"]
    assert polls.tally(reply) == Tally((Verdict("path", True), Verdict("ready", False, "2", "why\nnot")), 3)
    assert polls.tally([0, 0]) == Tally()


@pytest.mark.parametrize(
    "reply",
    [
        b"OK", [], [b"many"], [1], [1, 2, b"one"], [1, 0, b"path"], [1, 0, b"path", b"2\n\n"], [1, 0, b"path", b"1"],
        [1, 0, b"path", b"\xff"], [None],
    ],
    ids=repr,
)
def test_nonsense_is_a_bus_error(reply: object) -> None:
    with pytest.raises(BusError, match="answered vote with"):
        polls.tally(reply)
