"""What an exporter counts: every end once, nothing of last week, and never less than before."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from coldstart.chronicle.starts import ColdStart, Mark
from coldstart.cli.counting import MOST_SHARDS, PAST_SECONDS, VANISHED_SECONDS, Counting, Key
from coldstart.cli.looking import Look
from coldstart.testing.bus_contract import advert
from tests.operate.starts import BEGAN, failed_start, fallen_start, peer_start

MODEL = "llama-8b@5f1c09aa/single"
SHARD = "s" * 32


def look(at: float, *starts: ColdStart, held: int = 0) -> Look:
    adverts = tuple(advert(f"w{number}") for number in range(held))
    return Look(BEGAN + at, {SHARD: adverts} if held else {}, starts)


def above_zero(values: Mapping[Key, int]) -> dict[Key, int]:
    return {key: value for key, value in values.items() if value}


def test_every_end_counts_once_however_often_it_is_seen_and_after_it_is_forgotten() -> None:
    counting = Counting()
    conflict = replace(failed_start("w1", 0, "differs from the published truth"), failure="conflict")
    counting.see(look(10, conflict))
    counting.see(look(11, conflict, fallen_start("w2", 0, "w0", "stalled"), peer_start("w3", 5, "w0")))
    expected = {
        ("starts", (MODEL, "failed", "none")): 1,
        ("failures", (MODEL, "conflict")): 1,
        ("truth_conflicts", (MODEL,)): 1,
        ("starts", (MODEL, "served", "mixed")): 1,
        ("fallbacks", (MODEL,)): 1,
        ("starts", (MODEL, "served", "peer")): 1,
    }
    assert above_zero(counting.tally.counters) == expected
    counting.lost()
    counting.see(look(12))
    assert above_zero(counting.tally.counters) == expected


def test_what_is_known_to_be_possible_is_shown_at_zero() -> None:
    counting = Counting()
    counting.see(look(10, peer_start("w3", 5, "w0")))
    assert counting.tally.counters["failures", (MODEL, "storage")] == 0
    assert counting.tally.counters["digest_failures", (MODEL, "peer")] == 0
    assert counting.tally.gauges["holders", (MODEL,)] == 0


def test_an_exporter_that_starts_anew_tells_of_the_last_quarter_of_an_hour_alone() -> None:
    counting = Counting()
    counting.see(look(PAST_SECONDS + 50, failed_start("old", 0, "x"), failed_start("new", 100, "x")))
    assert counting.tally.counters["starts", (MODEL, "failed", "none")] == 1


def test_wrong_bytes_are_counted_by_where_they_came_from_as_more_of_them_come() -> None:
    counting = Counting()
    first = Mark(BEGAN, "corrupted", "chunk 3 has wrong bytes", "w0", 1)
    start = replace(peer_start("w1", 0, "w0"), marks=(first,))
    counting.see(look(5, start))
    more = Mark(BEGAN, "corrupted", "chunk 4 has wrong bytes", "storage", 2)
    counting.see(look(6, replace(start, marks=(first, more, more))))
    assert counting.tally.counters["digest_failures", (MODEL, "peer")] == 1
    assert counting.tally.counters["digest_failures", (MODEL, "storage")] == 2


def test_a_start_that_was_killed_has_vanished_and_one_that_waits_has_not() -> None:
    counting = Counting()
    start = replace(peer_start("w1", 0, "w0"), outcome="running", seconds=None, sources={})
    counting.see(look(10, start))
    assert counting.tally.gauges["starting", (MODEL,)] == 1
    counting.see(look(VANISHED_SECONDS + 60, start))
    assert counting.tally.gauges["starting", (MODEL,)] == 0
    assert counting.tally.counters["starts", (MODEL, "vanished", "none")] == 1


def test_who_holds_what_is_not_known_while_the_store_is_away() -> None:
    counting = Counting()
    counting.see(look(10, peer_start("w3", 5, "w0"), held=3))
    assert counting.tally.gauges["holders", (MODEL,)] == 3
    assert counting.tally.up
    counting.lost()
    assert not counting.tally.gauges
    assert not counting.tally.up


def test_names_that_anybody_may_write_make_a_bounded_number_of_series() -> None:
    counting = Counting()
    made = [
        replace(failed_start(f"w{number}", 0, "x"), shard=f"{number}", model=f"m{number}")
        for number in range(3 * MOST_SHARDS)
    ]
    counting.see(look(10, *made))
    failed = {key: value for key, value in counting.tally.counters.items() if key[1][1:2] == ("failed",)}
    assert len(failed) == MOST_SHARDS + 1
    assert sum(failed.values()) == 3 * MOST_SHARDS
