"""Parts ``handshake`` and ``memory`` of the bench: what a cold start costs beside moving its bytes.

Decides how many cold starts are made, in which processes, and what their figures are held
against. They run in child processes (``bench_starts.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from coldstart.cli.bench_family import Child, Family, family
from coldstart.cli.bench_results import Figure, Note, Part, at_most, figure
from coldstart.cli.bench_room import MIB
from coldstart.cli.bench_words import Done, Hold, Imports, Outcome, Start, Started

TINY = MIB
STARTS = 50
"""Cold starts per round in a process that has made one before."""
WARM_SECONDS = 10.0
FRESH = 5
"""Processes that make their first cold start, at most."""
HANDSHAKE_MS = 10.0
ALLOWANCE = 256 * MIB


def handshake(rounds: int, note: Note) -> Part:
    """From entering DISCOVER to the first byte, with a source and a store on this machine."""
    with family(TINY, arenas=4, processes=3) as ours:
        note("handshake: preparing")
        source = ours.child("source")
        source.ask(Hold(str(ours.checkpoint), ours.place), Done)
        fresh: list[Outcome] = []
        for number in range(min(rounds, FRESH)):
            note(f"handshake: process {number + 1}")
            with ours.passing("newcomer") as child:
                child.ask(Imports(), Done)
                fresh += _starts(child, ours, 1)
        note(f"handshake: {STARTS * rounds} cold starts, or as many as {WARM_SECONDS:g} s allow")
        with ours.passing("joiner") as child:
            warm = _starts(child, ours, STARTS * rounds + 1)[1:]
    first = _milliseconds([outcome.first_byte for outcome in warm])
    return Part(
        figures={
            "DISCOVER to first byte": first,
            "of it DISCOVER: claim": _milliseconds([outcome.phases["discover"] for outcome in warm]),
            "of it HANDSHAKE: truth and offer": _milliseconds([outcome.phases["handshake"] for outcome in warm]),
            "of it connecting, and the first range": _milliseconds([_tail(outcome) for outcome in warm]),
            "DISCOVER to first byte, a process's first": _milliseconds([outcome.first_byte for outcome in fresh]),
        },
        bars=(at_most("DISCOVER to first byte, median", first.median, HANDSHAKE_MS, "ms"),),
        notes=(
            f"first byte: the step that hears of the first range that landed, here all {TINY // MIB} MiB;"
            " imports are done before",
        ),
    )


def _starts(child: Child, ours: Family, count: int) -> Sequence[Outcome]:
    request = Start(str(ours.checkpoint), ours.place, count, seconds=WARM_SECONDS, watched=True)
    return child.ask(request, Started).outcomes


def _tail(outcome: Outcome) -> float:
    return outcome.first_byte - outcome.phases["discover"] - outcome.phases["handshake"]


def _milliseconds(seconds: Sequence[float]) -> Figure:
    return figure("ms", [value * 1000 for value in seconds])


def memory(nbytes: int, rounds: int, note: Note) -> Part:
    """Peak resident size of a cold start above that of a process that has only imported."""
    with family(nbytes, arenas=2, processes=2) as ours:
        note("memory: preparing")
        idle: list[float] = []
        by_way: dict[str, list[float]] = {"peer": [], "storage": []}
        source = ours.child("source")
        source.ask(Hold(str(ours.checkpoint), ours.place), Done, nbytes)
        for round_ in range(rounds):
            note(f"memory: round {round_ + 1} of {rounds}")
            with ours.passing("idle") as child:
                idle.append(child.ask(Imports(), Done).peak)
            for way, place in (("peer", ours.place), ("storage", "")):
                with ours.passing("joiner") as child:
                    started = child.ask(Start(str(ours.checkpoint), place), Started, nbytes)
                by_way[way].append(started.peak - idle[-1] - nbytes)
    beside = {f"cold start from {way}, beside imports and model": found for way, found in by_way.items()}
    return Part(
        figures={
            "imports only": figure("MiB", [value / MIB for value in idle]),
            **{label: figure("MiB", [value / MIB for value in found]) for label, found in beside.items()},
        },
        bars=tuple(
            at_most(f"{label}, highest", max(found) / MIB, ALLOWANCE / MIB, "MiB") for label, found in beside.items()
        ),
        notes=(f"model: {nbytes // MIB} MiB; peak: high-water mark of the resident size",),
    )
