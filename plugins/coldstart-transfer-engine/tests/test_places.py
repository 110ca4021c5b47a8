"""Where bytes lie on both sides, and what has to be read from where to where."""

from __future__ import annotations

import pytest
from coldstart_transfer_engine import places
from coldstart_transfer_engine.places import Move, Place, Table, check, moves

from coldstart.errors import TransportError
from coldstart.layout import Span
from coldstart.ports import Region
from coldstart.testing.memories import layout_of


def test_neighbours_become_one_place() -> None:
    table = Table([Place(256, 1256, 44), Place(0, 1000, 256), Place(512, 9000, 10), Place(600, 0, 0)])
    assert table.places == (Place(0, 1000, 300), Place(512, 9000, 10))
    assert Table.decode(table.encode()).places == table.places


def test_places_are_cut_to_a_span() -> None:
    table = Table([Place(0, 1000, 100), Place(256, 5000, 100)])
    assert list(table.within(Span(90, 170))) == [Place(90, 1090, 10), Place(256, 5000, 4)]
    assert list(table.within(Span(100, 156))) == []
    assert list(table.within(Span(500, 10))) == []


def test_moves_join_two_different_cuts_and_leave_padding_out() -> None:
    flat, pieces = Table([Place(0, 1000, 512)]), Table([Place(0, 7000, 100), Place(256, 9000, 50)])
    assert list(moves(flat, pieces, Span(0, 512))) == [Move(1000, 7000, 100), Move(1256, 9000, 50)]
    assert list(moves(pieces, flat, Span(60, 200))) == [Move(7060, 1060, 40), Move(9000, 1256, 4)]
    assert list(moves(flat, flat, Span(10, 20))) == [Move(1010, 1010, 20)]


@pytest.mark.parametrize("whose", ["source", "target"])
def test_weights_without_memory_are_refused_and_padding_is_not(whose: str) -> None:
    layout = layout_of(100, 50)
    whole, part = Table([Place(0, 7000, 100), Place(256, 9000, 50)]), Table([Place(0, 7000, 100), Place(256, 9000, 49)])
    check(layout, whole, whole, [Span(0, layout.nbytes)])
    check(layout, part, part, [Span(0, 256)])
    with pytest.raises(TransportError, match=f"the {whose} has no memory for the bytes at 305") as caught:
        check(layout, *((whole, part) if whose == "source" else (part, whole)), [Span(0, layout.nbytes)])
    assert caught.value.reason == "refused"


def test_memory_in_too_many_pieces_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MAX_PLACES", 1)
    regions = [Region("cpu", 1000, 10, 0), Region("cpu", 5000, 10, 256)]
    assert Table.of(regions[:1]).regions("cpu") == regions[:1]
    with pytest.raises(TransportError, match="memory of 2 pieces, the transfer engine takes at most 1"):
        Table.of(regions)
