"""``coldstart bench``: this library beside what this machine could do at best.

Decides which parts run, in which order, and how their progress and results are shown. What is
measured and how is decided in ``bench_tcp.py``, ``bench_joins.py`` and ``bench_import.py``, each
of which does its work in child processes (``bench_family.py``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.status import Status

from coldstart.cli import bench_import, bench_joins, bench_tcp, output
from coldstart.cli.bench_results import Note, Part, Result, show
from coldstart.cli.bench_room import MIB
from coldstart.cli.interruption import terminations_unwind
from coldstart.errors import ConfigError

Measure = Callable[[int, int, Note], Part]
"""Measures one part, given the model's bytes, the rounds, and whom to tell."""

PARTS: Mapping[str, Measure] = {
    "tcp": bench_tcp.measure,
    "handshake": lambda nbytes, rounds, note: bench_joins.handshake(rounds, note),
    "memory": bench_joins.memory,
    "import": lambda nbytes, rounds, note: bench_import.measure(rounds, note),
}


def run(only: tuple[str, ...], *, mib: int, rounds: int, json: bool) -> None:
    """Measure the parts named in ``only`` (all of them if it is empty) and show what was found.

    Args:
        mib: size of the model that is moved, in MiB.
        rounds: repeats of each measurement.
        json: one JSON object on stdout instead of tables.

    Raises:
        ConfigError: there is no such part, or no room for a model of that size.
        ColdstartError: something could not be measured.
    """
    wanted = tuple(dict.fromkeys(part.strip() for part in only)) or tuple(PARTS)
    for part in wanted:
        if part not in PARTS:
            raise ConfigError(f"there is no part {part!r} to bench", advice=f"choose from {', '.join(PARTS)}")
    with terminations_unwind(), _progress(quiet=json) as note:
        parts = {part: PARTS[part](mib * MIB, rounds, note) for part in wanted}
    result = Result(mib, rounds, os.cpu_count() or 1, parts)
    if json:
        output.emit(result)
    else:
        show(result)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Note]:
    """One moving line on a terminal; in a pipe a line for each step, or nothing beside JSON."""
    if not output.redraws(output.STDERR):
        yield (lambda text: None) if quiet else output.note
        return
    with Status("", console=output.STDERR) as status:
        yield status.update
