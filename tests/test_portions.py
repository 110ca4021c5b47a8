"""How much is asked of each source at a time, and when it is fetched again elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldstart.plan import Chunks
from coldstart.portions import LEAST, SETTLE, SHARE, Brought, outrun, portion


@given(
    offered=st.integers(0, 2**60).map(Chunks),
    under_way=st.integers(0, 60),
    left=st.integers(0, 2000),
    sources=st.integers(1, 4),
)
def test_no_source_is_asked_for_more_than_its_share_of_what_is_left(
    offered: Chunks, under_way: int, left: int, sources: int
) -> None:
    asked = portion(offered, under_way, left, sources)
    assert not asked - offered
    assert asked == offered.lowest(len(asked)), "the first ones first: others wait for them"
    if asked:
        assert under_way + len(asked) <= max(LEAST, left // (SHARE * sources) + 1)
    if offered and not under_way:
        assert asked, "a source that has nothing to do is always asked for something"


def test_more_is_asked_for_when_half_of_it_has_come() -> None:
    offered = Chunks.first(1000)
    allowed = 1000 // (SHARE * 2)
    assert len(portion(offered, 0, 1000, 2)) == allowed
    assert not portion(offered, allowed // 2 + 1, 1000, 2)
    assert len(portion(offered, allowed // 2, 1000, 2)) == allowed - allowed // 2
    assert portion(Chunks.of([7]), allowed - 1, 1000, 2) == Chunks.of([7]), "what is all that there is, at once"


@pytest.mark.parametrize(
    ("owed", "behind", "ahead", "worth"),
    [
        (100e6, 10e6, 1e9, True),  # ten seconds against a tenth of one
        (100e6, 400e6, 1e9, False),  # a quarter of a second against a tenth and the change
        (1e6, 10e6, 1e9, False),  # not worth the change
        (100e6, 0.0, 1e9, False),  # it is too early to tell
        (100e6, 10e6, 0.0, False),
        (0, 10e6, 1e9, False),
    ],
)
def test_a_pull_is_ended_only_for_one_that_is_much_quicker(
    owed: float, behind: float, ahead: float, worth: bool
) -> None:
    assert outrun(int(owed), behind, ahead) is worth


def test_a_rate_says_nothing_at_first_and_is_not_lowered_by_having_nothing_to_do() -> None:
    brought = Brought.begun(10.0).more(100, 10.2).more(100, 10.4)
    assert brought.rate(10.4) == 0
    assert brought.rate(12.0) == pytest.approx(100)
    assert brought.rate_while_it_came == pytest.approx(500)
    assert Brought.begun(10.0).rate_while_it_came == 0
    assert SETTLE < 1
