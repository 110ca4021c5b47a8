"""Part ``tcp`` of the bench: from one process's memory into another's, as fast as this machine can.

Decides what is compared: every round copies the same bytes each way once, in turn, so that
whatever else this machine does hits all of them; ratios are taken within a round. The copies
themselves run in two child processes (``bench_copies.py``, ``bench_starts.py``).
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable

from coldstart import config
from coldstart.cli.bench_family import Family, family
from coldstart.cli.bench_results import Note, Part, at_least, figure, ratio
from coldstart.cli.bench_words import (
    Done,
    Hash,
    Hold,
    Lend,
    Lent,
    Load,
    Outcome,
    Plain,
    Prepare,
    Pull,
    Start,
    Started,
    Took,
)
from coldstart.hashing import WORKERS

BAR = 0.70
"""What tcp must reach of a plain socket's rate."""

PLAIN = "plain socket (the limit)"
PULL = "tcp pull"
DIGESTED = "tcp pull, digested as it lands"
COLD_START = "cold start, TRANSFER phase"
WHOLE = "cold start, from building to serving"
BUILD = "cold start, building the skeleton"
TOUCHED = "load_file, mapped and touched"
COPIED = "load_file, copied to own memory"
HASH = "digest alone, 1 thread"
HASHES = f"digest alone, {WORKERS} threads"

ARENAS = 4
"""The lender's, the source's, the target's; and the joiner's or ``load_file``'s, one after the other."""
PROCESSES = 4


def measure(nbytes: int, rounds: int, note: Note) -> Part:
    """Each way ``rounds`` times, after one of each to warm up."""
    with family(nbytes, arenas=ARENAS, processes=PROCESSES) as ours:
        note("tcp: preparing")
        starts: list[Outcome] = []
        ways = _ways(ours, starts)
        rates: dict[str, list[float]] = defaultdict(list)
        for round_ in range(rounds + 1):
            note(f"tcp: round {round_} of {rounds}" if round_ else "tcp: warming up")
            for label, way in ways.items():
                seconds = way()
                if round_:
                    rates[label].append(nbytes / seconds / 1e9)
    figures = {label: figure("GB/s", found) for label, found in rates.items()}
    phases = {name: statistics.median(start.phases[name] for start in starts[1:]) for name in starts[0].phases}
    shares = {label: ratio(rates[label], rates[PLAIN]) for label in (PULL, DIGESTED, COLD_START)}
    return Part(
        figures=figures,
        bars=(at_least(f"{PULL} / {PLAIN}", shares[PULL], BAR),),
        notes=(
            *(f"{label} / {PLAIN}: {share:.2f}" for label, share in shares.items()),
            f"the plain socket is one connection, tcp up to {config.load().connections}; both sides share the CPUs",
            "phases of a cold start: " + ", ".join(f"{name} {seconds:.4g} s" for name, seconds in phases.items()),
        ),
    )


def _ways(ours: Family, starts: list[Outcome]) -> dict[str, Callable[[], float]]:
    """Label to a function that moves all bytes once and says how many seconds that took.

    Every cold start is added to ``starts``.
    """
    nbytes, checkpoint = ours.nbytes, str(ours.checkpoint)
    lender, source, target, joiner = (ours.child(name) for name in ("lender", "source", "target", "joiner"))
    lent = lender.ask(Lend(checkpoint), Lent, nbytes)
    source.ask(Hold(checkpoint, ours.place), Done, nbytes)
    target.ask(Prepare(checkpoint), Done, nbytes)
    file = str(ours.checkpoint / "model.safetensors")

    def in_target(request: Plain | Pull | Hash) -> Callable[[], float]:
        return lambda: target.ask(request, Took, nbytes).seconds

    def cold_start() -> float:
        (outcome,) = joiner.ask(Start(checkpoint, ours.place), Started, nbytes).outcomes
        starts.append(outcome)
        return outcome.phases["transfer"]

    return {
        PLAIN: in_target(Plain(lent.port)),
        PULL: in_target(Pull(lent.ticket, digest=False)),
        DIGESTED: in_target(Pull(lent.ticket, digest=True)),
        COLD_START: cold_start,
        BUILD: lambda: starts[-1].phases["build"],
        WHOLE: lambda: starts[-1].seconds,
        TOUCHED: lambda: joiner.ask(Load(file, "touched"), Took, nbytes).seconds,
        COPIED: lambda: joiner.ask(Load(file, "copied"), Took, nbytes).seconds,
        HASH: in_target(Hash(1)),
        HASHES: in_target(Hash(WORKERS)),
    }
