"""``coldstart journal --follow``: lines come in the order in which things happened, and what is too late says so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from coldstart.cli import journal
from coldstart.cli.journal_order import HOLD_SECONDS, InOrder
from coldstart.cli.journal_words import Item
from coldstart.cli.looking import Look, Looker
from coldstart.errors import BusError
from tests.operate.starts import BEGAN, failed_start, peer_start


def item(at: float, name: str = "") -> Item:
    return Item(at, "w", name or f"{at}", "s", "TRANSFER", "")


def moments(told: Iterable[Item]) -> list[float]:
    return [each.at for each in told]


def test_a_line_waits_for_what_happened_before_it() -> None:
    order = InOrder()
    assert order.begin([], 0) == []
    assert order.take([item(10)], 10) == []
    assert order.take([item(10), item(9)], 11) == []
    told = order.take([item(10), item(9)], 10 + HOLD_SECONDS)
    assert moments(told) == [9, 10]
    assert not any(each.late for each in told)
    assert order.take([item(10), item(9)], 60) == []


def test_what_is_later_than_that_comes_at_once_and_says_so() -> None:
    order = InOrder()
    order.begin([], 0)
    order.take([item(10)], 10)
    assert moments(order.take([item(10)], 14)) == [10]
    (late,) = order.take([item(10), item(8)], 15)
    assert late == replace(item(8), late=True)


def test_what_is_there_already_is_told_at_once_but_for_its_end() -> None:
    order = InOrder()
    assert moments(order.begin([item(1), item(5), item(9)], 100)) == [1, 5]
    assert moments(order.take([item(1), item(5), item(9), item(8)], 104)) == [8, 9]


def test_the_last_lines_are_counted_whether_or_not_they_are_held() -> None:
    order = InOrder()
    told = order.begin([item(1), item(5), item(9)], 100, 2)
    assert moments([*told, *order.rest()]) == [5, 9]
    assert order.take([item(1), item(5), item(9)], 200) == []


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 12)), max_size=40))
def test_every_line_is_told_once_and_only_marked_ones_out_of_order(happened: Sequence[tuple[float, float]]) -> None:
    """Things happen at a moment and are seen so much later."""
    things = [(at, at + behind, item(at, f"{number}")) for number, (at, behind) in enumerate(happened)]
    order = InOrder()
    told = order.begin([], 0)
    for now in range(1, 120):
        told += order.take([each for _, seen, each in things if seen <= now], now)
    assert sorted(each.start for each in told) == sorted(each.start for *_, each in things)
    punctual = moments(each for each in told if not each.late)
    assert punctual == sorted(punctual)
    slow = {each.start for at, seen, each in things if seen - at > HOLD_SECONDS - 1}
    assert {each.start for each in told if each.late} <= slow


class Looks(Looker):
    """A store that is looked at, and then leaves."""

    def __init__(self, *seen: Look | BusError) -> None:
        super().__init__(None, AsyncExitStack())
        self._seen = list(seen)

    async def look(self) -> Look:
        if not self._seen:
            raise KeyboardInterrupt
        found = self._seen.pop(0)
        if isinstance(found, BusError):
            raise found
        return found


async def test_a_reader_that_leaves_gets_what_was_held_back_for_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "EVERY_SECONDS", 0.0)
    first, second = peer_start("w1", 0, "w0"), failed_start("w2", 1, "no disk")
    looks = Looks(Look(BEGAN, {}, (first,)), BusError("gone"), Look(BEGAN, {}, (first, second)))
    with pytest.raises(KeyboardInterrupt):
        await journal._follow(looks, "", 0, json=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(set(lines))
    assert lines == sorted(lines), "by the moment that each begins with"
    assert sum("  w2  " in line for line in lines) > 2
