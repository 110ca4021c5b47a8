"""``coldstart simulate``: fleets in virtual time, seed by seed, with faults, and every promise looked at.

Decides how progress is shown and the exit code: 0 if every promise held, 10 if one was broken, 128
and its number after a signal. A command that ends early shows what was played until then. What can be
asked for is in ``simulate_words.py``; who plays it in ``simulate_jobs.py``; what is counted in
``simulate_results.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coldstart.cli import output, simulate_jobs, simulate_results
from coldstart.cli.interruption import Interruption
from coldstart.cli.simulate_results import Tally
from coldstart.cli.simulate_words import Asked, Task
from coldstart.errors import ColdstartError, ConfigError

BROKEN = 10
"""The exit code when a promise was broken."""
MOST_JOBS = 1024


def run(asked: Asked, seeds: range, *, jobs: int | None, journal: bool, json: bool) -> None:
    """Play ``seeds`` and show what came of them.

    Args:
        jobs: processes; None: one for each core that this process may use.
        journal: show every step, of one seed.
        json: one JSON object on stdout instead of text.

    Raises:
        ConfigError: something asked for cannot be played.
        ColdstartError: a process ended; what was played is shown before.
    """
    asked.checked()
    if journal and len(seeds) > 1:
        raise ConfigError("--journal shows one seed", advice=f"give one, such as --seeds {seeds[0]}")
    if jobs is not None and not 1 <= jobs <= MOST_JOBS:
        raise ConfigError(f"--jobs is {jobs}", advice=f"use 1 to {MOST_JOBS}")
    tally, problem = Tally(asked, seeds), None
    with Interruption() as stop:
        plays = simulate_jobs.plays(Task(asked, journal), seeds, jobs=jobs or cores(), stop=stop)
        try:
            with closing(plays), _progress(len(seeds)) as advance:
                for played in plays:
                    tally.add(played)
                    advance(tally)
        except ColdstartError as error:
            problem = error
    result = tally.result(ended_early=problem.what if problem is not None else stop.name, journal=journal)
    if json:
        output.emit(result)
    else:
        simulate_results.show(result)
    if problem is not None:
        raise problem
    if stop.number:
        raise typer.Exit(128 + stop.number)
    if result.violations:
        raise typer.Exit(BROKEN)


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def _progress(seeds: int) -> Iterator[Callable[[Tally], None]]:
    """A bar on a terminal, which says what is found; nothing in a pipe."""
    if not output.redraws(output.STDERR):
        yield lambda tally: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=output.STDERR, transient=True) as bar:
        task = bar.add_task("seeds", total=seeds)

        def advance(tally: Tally) -> None:
            found = f", {tally.violations:,} violations since seed {tally.failures[0].seed}" if tally.failures else ""
            bar.update(task, completed=tally.seeds, description=f"{tally.cold_starts:,} cold starts{found}")

        yield advance
