"""What ``coldstart bench fleet`` found: one row for each size of fleet, the bars, and how they look.

Decides what a row says and when a bar is met. It must not know how a rollout is played
(``bench_fleet.py`` does). Times are in seconds, and in times of what one worker alone takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from coldstart.cli import output
from coldstart.cli.bench_results import Bar, at_most

BARS: Mapping[int, float] = {64: 1.25, 1024: 1.6}
"""All workers of a fleet of this size serve within so many times what one alone takes."""
MOST_CALLS = 8
"""Calls to the store in a cold start with a single source."""


class Paper(msgspec.Struct, frozen=True):
    """The formulas of ``bench_fleet_formulas.py``, in times of one worker alone on paper."""

    storage_for_all: float
    doubling: float
    chain: float
    pipeline: float


class Rollout(msgspec.Struct, frozen=True):
    """One simulated rollout, from its first start until every worker that was not killed before serves.

    Args:
        seconds, times: until the last one serves; ``times`` what one worker alone took in the simulation.
        median: seconds until half of them serve.
        served, killed: workers that came to serve in their first life, and kills that struck.
        storage_reads: begun by workers of the rollout, or of those that came after it, in any of their lives.
        paths: cold starts by where the bytes came from.
        own_calls, most_calls: of a worker to the store until it serves, at the median and at most.
        all_calls: of the whole fleet to the store, for each worker that served; sources renew adverts meanwhile.
        letters: that a worker has read from its inbox until it serves, at the median.
        violations: promises that were broken.
        cpu_seconds: what playing it has cost here.
    """

    seconds: float
    times: float
    median: float
    served: int
    killed: int
    storage_reads: int
    paths: Mapping[str, int]
    own_calls: float
    most_calls: int
    all_calls: float
    letters: float
    violations: int
    cpu_seconds: float
    trace_hash: str


class Row(msgspec.Struct, frozen=True):
    """Fleets of ``workers``; ``dying`` is absent where nobody was to die. ``chunk_bytes`` is of the simulation."""

    workers: int
    chunks: int
    chunk_bytes: int
    paper: Paper
    quiet: Rollout
    dying: Rollout | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The whole bench. ``one`` is the worker alone that everything is held against."""

    command: str
    version: str
    python: str
    date: str
    one: Rollout
    rows: Sequence[Row]
    bars: Sequence[Bar]
    notes: Sequence[str]


def bars(rows: Sequence[Row], single_source_calls: int) -> tuple[Bar, ...]:
    """Everything that was measured and has a bar."""
    return (
        *(
            at_most(f"all of {row.workers:,} serve, in times of one alone", row.quiet.times, BARS[row.workers])
            for row in rows
            if row.workers in BARS
        ),
        at_most("storage reads of a rollout without faults", max(row.quiet.storage_reads for row in rows), 1),
        at_most("calls to the store in a cold start with a single source", single_source_calls, MOST_CALLS),
    )


def show(result: Result) -> None:
    """For people: rollouts beside the formulas, what they asked of store and storage, the bars in words."""
    output.table(
        f"until all serve, in times of one alone ({result.one.seconds:.3g} s)",
        ("workers>", "simulated>", "with dying>", "storage for all>", "doubling>", "chain>", "pipeline>"),
        [_times(row) for row in result.rows],
    )
    output.say("")
    output.table(
        "",
        (
            "workers>", "dying", "killed>", "median s>", "all s>", "storage reads>", "store calls of one>", "most>",
            "calls of all per start>", "violations>", "chunk MiB>", "CPU s>",
        ),
        list(_costs(result.rows)),
    )  # fmt: skip
    output.say("")
    for note in result.notes:
        output.say(note)
    for bar in result.bars:
        output.say(f"{'met' if bar.met else 'MISSED'}: {bar.what}: {bar.value:g}, at most {bar.limit:g}")


def _times(row: Row) -> tuple[str, ...]:
    paper = row.paper
    dying = "" if row.dying is None else f"{row.dying.times:.3f}"
    on_paper = (paper.storage_for_all, paper.doubling, paper.chain, paper.pipeline)
    return (f"{row.workers:,}", f"{row.quiet.times:.3f}", dying, *(f"{times:.3f}" for times in on_paper))


def _costs(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    for row in rows:
        for dying, rollout in (("no", row.quiet), ("yes", row.dying)):
            if rollout is not None:
                yield (
                    f"{row.workers:,}",
                    dying,
                    str(rollout.killed),
                    f"{rollout.median:.2f}",
                    f"{rollout.seconds:.2f}",
                    str(rollout.storage_reads),
                    f"{rollout.own_calls:g}",
                    str(rollout.most_calls),
                    f"{rollout.all_calls:.1f}",
                    str(rollout.violations),
                    f"{row.chunk_bytes / 2**20:.4g}",
                    f"{rollout.cpu_seconds:.1f}",
                )
