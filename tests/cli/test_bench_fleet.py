"""bench fleet: the formulas by hand, small rollouts against them, the JSON, and its refusals."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import pytest
from msgspec.structs import replace

from coldstart.cli import bench_fleet
from coldstart.cli import bench_fleet_formulas as paper
from coldstart.cli.bench_fleet import Asked, sizes_of
from coldstart.cli.bench_fleet_results import Result, bars
from coldstart.errors import ConfigError

SMALL = Asked(workers=(1, 8), gb=6.4, chunk_mib=64, patience=600.0)
"""About 95 chunks; nobody gives up waiting."""


# ------------------------------------------------------------------------------------- formulas


def test_one_alone_takes_its_bytes_over_the_narrowest_part_of_its_way() -> None:
    assert paper.alone(100.0, link=10.0, reader=5.0, holders=1) == 10.0
    assert paper.alone(100.0, link=10.0, reader=5.0, holders=0) == 20.0
    assert paper.alone(100.0, link=10.0, reader=50.0, holders=0) == 10.0


@pytest.mark.parametrize(("workers", "seconds"), [(1, 10.0), (4, 10.0), (8, 20.0), (1000, 2500.0)])
def test_storage_for_all_is_shared_from_some_number_on(workers: int, seconds: float) -> None:
    assert paper.storage_for_all(workers, 100.0, link=10.0, reader=10.0, storage=40.0) == seconds


@pytest.mark.parametrize(
    ("workers", "holders", "slots", "rounds"),
    [
        (1, 1, 1, 1),
        (2, 1, 1, 2),  # to one, then to the other
        (3, 1, 1, 2),
        (7, 1, 1, 3),
        (8, 1, 1, 4),
        (1, 0, 1, 1),  # storage
        (2, 0, 1, 2),
        (8, 0, 1, 4),
        (2, 1, 2, 2),  # both at half the rate
        (8, 1, 2, 4),  # two, then six
        (8, 0, 2, 5),
        (1, 1, 2, 1),
        (3, 1, 2, 3),  # two at half the rate, then one at the whole
    ],
)
def test_doubling_goes_in_rounds(workers: int, holders: int, slots: int, rounds: int) -> None:
    assert paper.doubling(workers, 100.0, 10.0, 10.0, holders, slots) == 10.0 * rounds


def test_a_chain_takes_a_chunk_more_for_each_worker() -> None:
    assert paper.chain(1, 100.0, 2.0, 10.0, 10.0, holders=1) == 10.0
    assert paper.chain(6, 100.0, 2.0, 10.0, 10.0, holders=1) == 11.0
    assert paper.chain(6, 100.0, 2.0, 10.0, 5.0, holders=0) == 21.0


@pytest.mark.parametrize(
    ("workers", "holders", "more"), [(1, 0, 0), (2, 0, 1), (8, 0, 3), (9, 0, 4), (1, 1, 0), (3, 1, 1), (7, 1, 2)]
)
def test_a_perfect_pipeline_takes_the_logarithm_more(workers: int, holders: int, more: int) -> None:
    assert paper.pipeline(workers, 100.0, 2.0, 10.0, 10.0, holders) == pytest.approx(10.0 + more * 0.2)


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 64, 1000])
@pytest.mark.parametrize("holders", [0, 1])
def test_nothing_is_quicker_than_a_perfect_pipeline(workers: int, holders: int) -> None:
    least = paper.pipeline(workers, 100.0, 1.0, 10.0, 10.0, holders)
    assert least <= paper.chain(workers, 100.0, 1.0, 10.0, 10.0, holders) + 1e-9
    for slots in (1, 2, 4):
        assert least <= paper.doubling(workers, 100.0, 10.0, 10.0, holders, slots) + workers * 0.1


# ------------------------------------------------------------------------------------- rollouts


@pytest.mark.parametrize("holders", [0, 1, 3])
def test_no_rollout_is_quicker_than_possible_and_storage_is_read_once(holders: int) -> None:
    result = bench_fleet.measure(replace(SMALL, holders=holders, dying=0.0), _silent)
    for row in result.rows:
        assert row.dying is None
        assert row.quiet.violations == 0
        assert row.quiet.served == row.workers
        assert row.quiet.times >= row.paper.pipeline * 0.99
        assert row.quiet.times <= row.paper.doubling * 1.05
        assert row.quiet.storage_reads == (0 if holders else 1)


def test_a_rollout_of_64_with_workers_dying_keeps_its_promises() -> None:
    result = bench_fleet.measure(replace(SMALL, workers=(64,), gb=1.28, patience=60.0), _silent)
    (row,) = result.rows
    assert row.dying is not None
    assert row.dying.killed == 3
    assert 61 <= row.dying.served <= 64
    assert row.quiet.violations == row.dying.violations == 0


def test_the_same_seed_is_the_same_result() -> None:
    def found() -> list[tuple[str, str]]:
        rows = bench_fleet.measure(replace(SMALL, gb=0.64), _silent).rows
        return [(row.quiet.trace_hash, row.dying.trace_hash if row.dying else "") for row in rows]

    assert found() == found()


def test_very_large_fleets_have_larger_chunks_of_the_same_model() -> None:
    for workers in (1, 64, 1024, 10_000, 100_000):
        scenario = Asked().scenario(workers)
        assert scenario.chunks * scenario.chunk_bytes == pytest.approx(64e9, rel=1e-6)
    assert Asked().scenario(1024).chunks == 954
    assert Asked().scenario(10_000).chunks == 200


def test_bars_are_met_or_missed_by_what_was_measured() -> None:
    result = bench_fleet.measure(replace(SMALL, workers=(1,), dying=0.0), _silent)
    (row,) = result.rows
    found = bars([replace(row, workers=64, quiet=replace(row.quiet, times=1.3, storage_reads=2))], 8)
    assert [(bar.value, bar.limit, bar.met) for bar in found] == [(1.3, 1.25, False), (2, 1, False), (8, 8, True)]


# -------------------------------------------------------------------------------- the command


def test_json_is_one_line_with_everything(capsys: pytest.CaptureFixture[str]) -> None:
    bench_fleet.run(replace(SMALL, gb=0.64), json=True)
    printed = capsys.readouterr()
    result = msgspec.json.decode(printed.out, type=Result)
    assert printed.out.count("\n") == 1
    assert [row.workers for row in result.rows] == [1, 8]
    assert result.rows[0].dying is None
    assert result.rows[1].dying is not None
    assert result.command == "coldstart bench fleet --workers 1,8 --gb 0.64 --patience 600.0"
    assert {bar.what for bar in result.bars} >= {"storage reads of a rollout without faults"}


def test_people_are_told_in_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    bench_fleet.run(replace(SMALL, gb=0.64), json=False)
    printed = capsys.readouterr()
    assert "met: storage reads of a rollout without faults: 1, at most 1" in printed.out.splitlines()
    assert "8 workers, of which 1 die" in printed.err
    assert "\x1b" not in printed.out + printed.err


@pytest.mark.parametrize(
    "wrong",
    [{"dying": 1.5}, {"gb": 0.0}, {"slots": 0}, {"link_gbps": -1.0}, {"patience": math.nan}, {"holders": -1}],
    ids=str,
)
def test_what_cannot_be_played_is_refused_by_name(wrong: Mapping[str, float]) -> None:
    (field,) = wrong
    with pytest.raises(ConfigError, match="--" + field.replace("_", "-")):
        replace(Asked(), **wrong).checked()


def test_sizes_are_read_in_the_order_given() -> None:
    assert sizes_of("8, 1,1_024,8") == (8, 1, 1024)


@pytest.mark.parametrize("text", ["", "x", "0", "1,-8", "1;8", "1000000"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--workers"):
        sizes_of(text)


def _silent(text: str) -> None:
    return
