"""The estimate itself: never without a figure, never on a small gain, and the more readers the less storage."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldstart.estimate import GAIN, WATCH, Estimate, Storage, Way, estimate, lease

GB = 10**9
RATES = st.floats(min_value=1e3, max_value=1e12)
SIZES = st.integers(min_value=1, max_value=10**13)
MARGINS = st.floats(min_value=0.1, max_value=100.0)
WAYS = st.builds(
    Way,
    nbytes=SIZES,
    rate=RATES,
    measured=st.just("link"),
    ahead=st.integers(0, 20_000),
    moved=st.integers(0, 20_000),
    watched=st.floats(0.0, 1e4),
)
STORAGES = st.builds(Storage, nbytes=SIZES, rate=RATES, readers=st.integers(0, 1000))


def found(way: Way, storage: Storage, margin: float = 2.5) -> Estimate:
    made = estimate(way, storage, margin, 0.0)
    assert made is not None
    return made


def test_a_slow_link_beside_quick_storage_means_storage() -> None:
    made = found(Way(64 * GB, 0.1 * GB, "link"), Storage(64 * GB, 12.8 * GB, readers=3))
    assert (made.waiting, made.storage) == (640.0, 20.0)
    assert (made.decision, made.most) == ("ask", 51)
    assert made.basis == ("64 GB missing", "0.1 GB/s (link)", "storage 12.8 GB/s, 3 others read it")
    assert str(made) == "waiting would take 640 s, storage 20 s"


def test_equal_rates_mean_waiting_and_so_does_a_link_that_two_share() -> None:
    for share in (1, 2):
        made = found(Way(64 * GB, 12.8 * GB / share, "this transfer"), Storage(64 * GB, 12.8 * GB))
        assert (made.decision, made.most) == ("wait", 0)


def test_a_line_costs_nothing_before_it_was_watched_and_then_what_its_pace_says() -> None:
    way = Way(GB, GB, "link", ahead=9, moved=1, watched=WATCH - 0.1)
    assert way.seconds == 1.0
    assert Way(GB, GB, "link", ahead=9, moved=1, watched=4.0).seconds == 21.0
    assert Way(GB, GB, "link", ahead=9, moved=0, watched=4.0).seconds == 41.0


@pytest.mark.parametrize(
    ("way", "storage", "margin"),
    [
        (Way(GB, 0.0, "link"), Storage(GB, GB), 2.5),
        (Way(GB, 1.0, "link"), Storage(GB, 0.0), 2.5),
        (Way(0, 1.0, "link"), Storage(0, GB), 2.5),
        (Way(GB, 1.0, "link"), Storage(GB, GB), 0.0),
    ],
)
def test_without_a_figure_there_is_no_estimate(way: Way, storage: Storage, margin: float) -> None:
    assert estimate(way, storage, margin, 0.0) is None


def test_nobody_goes_to_storage_for_a_moment() -> None:
    assert found(Way(GB, 1.2 * GB, "link"), Storage(GB, 1000 * GB)).decision == "wait"
    assert found(Way(GB, 0.5 * GB, "link"), Storage(GB, 1000 * GB)).decision == "ask"


@given(WAYS, STORAGES, MARGINS)
def test_storage_is_asked_for_only_where_it_is_clearly_quicker(way: Way, storage: Storage, margin: float) -> None:
    made = found(way, storage, margin)
    if made.decision == "ask":
        assert made.storage * margin <= made.waiting * (1 + 1e-9)
        assert made.waiting - made.storage >= GAIN - 1e-6 * made.waiting
    assert math.isfinite(made.waiting)
    assert made.waiting >= way.nbytes / way.rate
    assert lease(made) > made.storage or made.decision != "ask"


@given(WAYS, STORAGES, MARGINS)
def test_as_many_as_it_is_worth_to_may_read_and_no_more(way: Way, storage: Storage, margin: float) -> None:
    made = found(way, storage, margin)
    for readers in {0, made.most // 2, max(0, made.most - 1)}:
        again = found(way, Storage(storage.nbytes, storage.rate, readers), margin)
        assert again.decision == ("ask" if made.most else "wait")
    full = found(way, Storage(storage.nbytes, storage.rate, made.most), margin)
    assert full.decision == ("full" if made.most else "wait")


@given(WAYS, STORAGES, MARGINS, st.floats(1.0, 100.0))
def test_a_quicker_link_never_makes_storage_more_attractive(
    way: Way, storage: Storage, margin: float, factor: float
) -> None:
    quicker = Way(way.nbytes, way.rate * factor, way.measured, way.ahead, way.moved, way.watched)
    assert found(quicker, storage, margin).most <= found(way, storage, margin).most
