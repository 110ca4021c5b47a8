"""What coordination alone came to: values, the table and the bars.

Decides what is shown of it; it must not know how it was measured (``joiners.py`` does).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from coldstart.cli.bench_results import Bar, Figure


class Coordination(msgspec.Struct, frozen=True, kw_only=True):
    """One way to begin. Figures of phases are in milliseconds, waiting for a slot included.

    ``cpu_seconds`` are this process's, which plays everybody, ``store_seconds`` the store's. ``calls`` are a
    joiner's own until it serves, by operation and for each; ``fleet_calls`` those of all workers for each
    joiner, until the last one serves.
    """

    name: str
    joiners: int
    sources: int
    slots: int
    discover: Figure
    handshake: Figure
    both: Figure
    seconds: float
    cpu_seconds: float
    store_seconds: float
    claims_per_second: float
    claims: int
    calls: Figure
    by_operation: Mapping[str, float]
    fleet_calls: float
    paths: Mapping[str, int]
    most_slots_at_a_source: int
    most_slots_in_the_store: int
    exceeded: tuple[str, ...]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run; ``load`` is the machine's in the minute before."""

    version: str
    python: str
    store: str
    cpus: int
    load: float
    date: str
    cases: tuple[Coordination, ...]
    bars: tuple[Bar, ...]


def table(result: Result) -> str:
    """Everything, in Markdown."""
    rows = [
        f"{result.cpus} CPUs with a load of {result.load:.1f} before, {result.store}, "
        f"Python {result.python}, coldstart {result.version}, {result.date}",
        "",
        "| case | joiners | sources x slots | DISCOVER p50 / p99 ms | HANDSHAKE p50 / p99 ms | both p99 ms "
        "| all serve s | CPU s, store's | claims | claims/s | calls of one | calls of all per start | paths "
        "| most slots in use |",
        "|---|---:|---|---|---|---:|---:|---|---:|---:|---:|---:|---|---|",
    ]
    for case in result.cases:
        paths = ", ".join(f"{path} {count}" for path, count in sorted(case.paths.items()))
        rows.append(
            f"| {case.name} | {case.joiners} | {case.sources} x {case.slots} | {_both(case.discover)} "
            f"| {_both(case.handshake)} | {p99(case.both):g} | {case.seconds:g} "
            f"| {case.cpu_seconds:g}, {case.store_seconds:g} | {case.claims} | {case.claims_per_second:g} "
            f"| {case.calls.median:g} | {case.fleet_calls:g} | {paths} "
            f"| {case.most_slots_at_a_source} at a source, {case.most_slots_in_the_store} in the store |"
        )
    rows.append("")
    rows.extend(f"{case.name}, calls of one: {_counts(case.by_operation)}" for case in result.cases)
    for bar in result.bars:
        word, found = "met" if bar.met else "MISSED", f"{bar.value:g} {bar.unit}".strip()
        rows.append(f"{word}: {bar.what}: {found}, at most {bar.limit:g}")
    return "\n".join(rows)


def _counts(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {count:g}" for name, count in counts.items())


def _both(found: Figure) -> str:
    return f"{found.median:g} / {p99(found):g}"


def p99(found: Figure) -> float:
    """The 99th percentile, or the highest where there are too few for it."""
    return found.high if found.p99 is None else found.p99
