"""What a rollout on one machine came to: values, the table and the bar.

Times are in seconds from the start signal until a worker says that it serves.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from coldstart.report import Report

BAR = 1.4
"""All of eight workers serve within so many times what one takes."""


class Start(msgspec.Struct, frozen=True):
    """One worker's cold start."""

    worker: str
    seconds: float
    report: Report


class Case(msgspec.Struct, frozen=True):
    """Workers that were released at one signal.

    ``holders`` served before it; ``predicted`` is when all of them serve by the simulator's word.
    ``commands`` are the store's own counts between the signal and the last SERVE, of scripts called and of
    blocking reads; those of the holders are in it.
    """

    name: str
    workers: int
    holders: int
    predicted: float
    starts: tuple[Start, ...]
    commands: Mapping[str, int]

    @property
    def last(self) -> float:
        return max(start.seconds for start in self.starts)

    @property
    def median(self) -> float:
        return statistics.median(start.seconds for start in self.starts)

    @property
    def storage_reads(self) -> int:
        return sum(start.report.bytes_storage > 0 for start in self.starts)

    @property
    def paths(self) -> Mapping[str, int]:
        return Counter(start.report.path for start in self.starts)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run. ``mbit`` is 10^6 bits per second of each link, ``storage`` bytes per second of one read.

    ``load`` is the machine's in the minute before: others may use its cores, too.
    """

    version: str
    python: str
    kernel: str
    cpus: int
    load: float
    store: str
    date: str
    nbytes: int
    mbit: float
    storage: float
    settings: Mapping[str, str]
    cases: tuple[Case, ...]


def table(result: Result) -> str:
    """Everything, in Markdown."""
    rows = [
        f"{result.nbytes / 1e6:.0f} MB over links of {result.mbit:g} Mbit/s each way; one storage read has "
        f"{result.storage * 8 / 1e6:g} Mbit/s; {result.cpus} CPUs with a load of {result.load:.1f} before, "
        f"Linux {result.kernel}, {result.store}, "
        f"Python {result.python}, coldstart {result.version}, {result.date}",
        "",
        "| case | median s | all serve s | simulated s | times one | storage reads | paths | scripts "
        "| blocking reads |",
        "|---|---:|---:|---:|---:|---:|---|---:|---:|",
    ]
    first = {case.holders: case.last for case in reversed(result.cases) if case.workers == 1}
    for case in result.cases:
        paths = ", ".join(f"{path} {count}" for path, count in sorted(case.paths.items()))
        times = f"{case.last / first[case.holders]:.2f}" if case.holders in first else ""
        rows.append(
            f"| {case.name} | {case.median:.2f} | {case.last:.2f} | {case.predicted:.2f} | {times} "
            f"| {case.storage_reads} | {paths} | {case.commands.get('evalsha', 0)} | {case.commands.get('xread', 0)} |"
        )
    return "\n".join(rows)


def verdicts(result: Result) -> Sequence[str]:
    """The bar, in words, for each way to begin."""
    said = []
    for holders in (1, 0):
        alone = [case for case in result.cases if case.workers == 1 and case.holders == holders]
        many = [case for case in result.cases if case.workers > 1 and case.holders == holders]
        for case in many if alone else ():
            ratio = case.last / alone[0].last
            word = "met" if ratio <= BAR else "MISSED"
            said.append(f"{word}: {case.name}: {ratio:.2f} times one alone, at most {BAR}")
    return said
