"""What ``coldstart simulate`` found: sums over all seeds, the failing ones, and how they look.

Decides what is counted and shown. It must not know how seeds are played (``simulate.py`` does).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from coldstart import __version__
from coldstart.cli.output import say
from coldstart.cli.simulate_words import Asked, Played
from coldstart.testing.simulator import Violation

_SHOWN = 20
"""Violations of one seed that people are shown; JSON has all."""


class Failure(msgspec.Struct, frozen=True):
    """A seed with violations, what led to the first of them, and the command that plays it again."""

    seed: int
    violations: Sequence[Violation]
    journal: Sequence[str]
    replay: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """All seeds together. ``violations`` comes last, so that the end of the output is the verdict.

    ``weighed`` counts cold starts by what the last estimate was decided for, where there was one; ``faults`` are those
    that struck, by kind. ``trace_hash`` is equal for equal runs of equal seeds, on whatever machine. ``ended_early``
    says why fewer seeds were played than the ``asked_seeds``.
    """

    command: str
    version: str
    workers: int
    asked_seeds: int
    seeds: int
    cold_starts: int
    paths: Mapping[str, int]
    faults: Mapping[str, int]
    weighed: Mapping[str, int]
    storage_reads: int
    events: int
    virtual_seconds: float
    cpu_seconds: float
    cold_starts_per_cpu_second: float
    trace_hash: str
    failures: Sequence[Failure]
    ended_early: str | msgspec.UnsetType = msgspec.UNSET
    journal: Sequence[str] | msgspec.UnsetType = msgspec.UNSET
    violations: int


class Tally:
    """Adds up what was played."""

    def __init__(self, asked: Asked, seeds: range) -> None:
        self.seeds = self.cold_starts = self.violations = 0
        self.failures: list[Failure] = []
        self._asked, self._asked_seeds = asked, seeds
        self._storage_reads = self._events = 0
        self._virtual = self._cpu = 0.0
        self._paths: Counter[str] = Counter()
        self._weighed: Counter[str] = Counter()
        self._faults: Counter[str] = Counter({kind.value: 0 for kind in asked.faults})
        self._traces = hashlib.blake2b(digest_size=16)
        self._journal: tuple[str, ...] = ()

    def add(self, played: Played) -> None:
        """Take one seed in."""
        outcome = played.outcome
        self.seeds += 1
        self.cold_starts += outcome.cold_starts
        self.violations += len(outcome.violations)
        self._storage_reads += outcome.storage_reads
        self._events += outcome.events
        self._virtual += outcome.virtual_seconds
        self._cpu += played.cpu_seconds
        self._paths.update(outcome.paths)
        self._weighed.update(outcome.weighed)
        self._faults.update(outcome.faults)
        self._traces.update(outcome.trace_hash.encode())
        self._journal = outcome.journal
        if outcome.violations:
            replay = self._asked.replay(outcome.seed)
            self.failures.append(Failure(outcome.seed, outcome.violations, outcome.journal, replay))

    def result(self, *, ended_early: str, journal: bool) -> Result:
        """The sums so far; with the last seed's ``journal``, if that was asked for."""
        first, last = self._asked_seeds[0], self._asked_seeds[-1]
        return Result(
            command=self._asked.command(str(first) if first == last else f"{first}..{last}"),
            version=__version__,
            workers=self._asked.workers,
            asked_seeds=len(self._asked_seeds),
            seeds=self.seeds,
            cold_starts=self.cold_starts,
            paths=dict(sorted(self._paths.items())),
            weighed=dict(sorted(self._weighed.items())),
            faults=self._faults,
            storage_reads=self._storage_reads,
            events=self._events,
            virtual_seconds=round(self._virtual, 3),
            cpu_seconds=round(self._cpu, 3),
            cold_starts_per_cpu_second=round(self.cold_starts / self._cpu, 1) if self._cpu else 0.0,
            trace_hash=self._traces.hexdigest(),
            failures=self.failures,
            ended_early=ended_early or msgspec.UNSET,
            journal=self._journal if journal else msgspec.UNSET,
            violations=self.violations,
        )


def show(result: Result) -> None:
    """For people: the journal, the failing seeds, the sums, and the verdict last."""
    if result.journal is not msgspec.UNSET:
        _say_all(result.journal)
    for failure in result.failures:
        _show_failure(failure, journal=result.journal is msgspec.UNSET)
    for label, value in _sums(result):
        say(f"{label:16} {value}")


def _show_failure(failure: Failure, *, journal: bool) -> None:
    say(f"seed {failure.seed}: {len(failure.violations)} violations")
    for violation in failure.violations[:_SHOWN]:
        say(f"  {violation.promise}: {violation.worker} at {violation.at:.4f} s: {violation.what}")
    if len(failure.violations) > _SHOWN:
        say(f"  and {len(failure.violations) - _SHOWN} more")
    if journal:
        say("  what led to the first of them:")
        _say_all([f"    {line}" for line in failure.journal])
    say(f"  replay: {failure.replay}")
    say("")


def _say_all(lines: Sequence[str]) -> None:
    for line in lines:
        say(line)


def _sums(result: Result) -> list[tuple[str, str]]:
    seeds = f"{result.seeds:,}, {result.workers:,} workers each"
    if result.ended_early is not msgspec.UNSET:
        seeds += f"; {result.asked_seeds:,} were asked for, but: {result.ended_early}"
    rate = f"{result.cold_starts_per_cpu_second:,.0f} cold starts per CPU second"
    return [
        ("seeds", seeds),
        ("cold starts", f"{result.cold_starts:,}"),
        ("by path", _counts(result.paths)),
        ("faults", f"{sum(result.faults.values()):,}{': ' if result.faults else ''}{_counts(result.faults)}"),
        *([("by estimate", _counts(result.weighed))] if result.weighed else []),
        ("storage reads", f"{result.storage_reads:,}"),
        ("events", f"{result.events:,}"),
        ("virtual seconds", f"{result.virtual_seconds:,.0f}"),
        ("CPU seconds", f"{result.cpu_seconds:,.1f}; {rate}"),
        ("violations", f"{result.violations:,}"),
    ]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
