"""Which of two rates counts, what is asked for first, what is too slow."""

from __future__ import annotations

import pytest

from coldstart.links.rates import (
    LEAST_BYTES,
    WEEK,
    Floors,
    Moved,
    Passage,
    Rate,
    best,
    is_fresh,
    joined,
    preferred,
    shortfalls,
)

NOW = 1_000_000.0
ORDER = ("nvlink", "rdma", "tcp")


def test_a_rate_is_believed_for_a_week_and_not_from_the_future() -> None:
    assert is_fresh(Rate(1e9, "probe", NOW), NOW)
    assert is_fresh(Rate(1e9, "probe", NOW), NOW + WEEK - 1)
    assert not is_fresh(Rate(1e9, "probe", NOW), NOW + WEEK)
    assert not is_fresh(Rate(1e9, "probe", NOW), NOW - 1)


def test_a_link_can_do_what_it_has_done() -> None:
    slow, quick = Rate(1e9, "transfer", NOW + 5), Rate(2e9, "probe", NOW)
    assert best(slow, quick) is quick
    assert best(quick, slow) is quick
    assert best(None, slow) is slow
    assert best(slow, None) is slow
    assert best(None, None) is None


@pytest.mark.parametrize(
    ("rates", "wanted"),
    [
        ({}, ORDER),
        ({"tcp": 9.0}, ORDER),
        ({"nvlink": 1.0, "tcp": 9.0}, ("tcp", "rdma", "nvlink")),
        ({"nvlink": 9.0, "tcp": 1.0}, ORDER),
        ({"nvlink": 1.0, "rdma": 3.0, "tcp": 2.0}, ("rdma", "tcp", "nvlink")),
        ({"rdma": 2.0, "tcp": 2.0}, ORDER),
        ({"gone": 100.0, "tcp": 1.0}, ORDER),
    ],
)
def test_the_quicker_comes_first_and_what_was_never_measured_keeps_its_turn(
    rates: dict[str, float], wanted: tuple[str, ...]
) -> None:
    assert preferred(ORDER, rates) == wanted


def test_a_few_bytes_say_nothing_of_a_link() -> None:
    assert Moved(LEAST_BYTES - 1, 0.001).rate == 0
    assert Moved(LEAST_BYTES, 0.0).rate == 0
    assert Moved(LEAST_BYTES, 2.0).rate == LEAST_BYTES / 2


def passage(gbps: float, link: float = 0.0, route: str = "") -> Passage:
    return Passage("a", "tcp", route, Moved(10**9, 1 / gbps), link * 1e9, "probe" if link else "none")


def test_many_pulls_over_one_way_are_one_passage() -> None:
    first = Passage("a", "tcp", "", Moved(100, 1.0), 1e9, "probe", 5.0)
    second = Passage("a", "tcp", "", Moved(300, 1.0), 2e9, "transfer")
    slower = Passage("a", "tcp", "", Moved(200, 8.0), 1e9, "probe", 9.0)
    other = Passage("b", "tcp", "", Moved(1, 1.0))
    assert joined([first, other, second, slower]) == (
        Passage("a", "tcp", "", Moved(600, 10.0), 2e9, "transfer"),
        other,
    )
    assert joined([]) == ()


def test_floors_are_warned_of_in_words() -> None:
    assert shortfalls(passage(0.5), Floors(gbps=1)) == ("a over tcp gave 0.5 GB/s, under the floor of 1 GB/s",)
    assert shortfalls(passage(0.5, 2, "rdma"), Floors(share=0.5)) == (
        "a over tcp (rdma) gave 0.25 of the 2 GB/s that its link has given, under the floor of 0.5",
    )
    assert len(shortfalls(passage(0.5, 2), Floors(1, 0.5))) == 2


def test_nothing_is_warned_of_without_a_floor_a_link_or_enough_bytes() -> None:
    assert shortfalls(passage(0.001, 2), Floors()) == ()
    assert shortfalls(passage(0.001), Floors(share=0.9)) == ()
    assert shortfalls(passage(1), Floors(gbps=1)) == ()
    assert shortfalls(Passage("a", "tcp", "", Moved(100, 1.0), 1e9, "probe"), Floors(1, 0.5)) == ()
