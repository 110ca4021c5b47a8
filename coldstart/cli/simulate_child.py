"""One process of ``coldstart simulate``: plays the seeds that come on stdin, a line each.

Decides what a failed run brings along: the part of its journal that led to its first violation.
Whatever a run raises is a violation, too. Ends with its stdin. ``simulate_jobs.py`` starts it;
``simulate_words.py`` has what is said.
"""

from __future__ import annotations

import sys
import time
import traceback

import msgspec
from msgspec.structs import replace

from coldstart.cli.simulate_words import Played, Task
from coldstart.testing.simulator import Outcome, Scenario, Violation, simulate

LAST = 40
"""Lines of the journal that are kept of a failed run."""


def play(scenario: Scenario, seed: int, *, journal: bool) -> Played:
    """One run. Only a failed one is played again to learn what led to it, so that the others are quick.

    Args:
        journal: keep the whole journal.
    """
    began = time.process_time()
    try:
        outcome = simulate(scenario, seed, journal=journal)
    except Exception as error:
        outcome = _broken(seed, error)
    spent = time.process_time() - began
    if outcome.violations and outcome.trace_hash and not journal:
        again = simulate(scenario, seed, journal=True)
        if again.trace_hash != outcome.trace_hash:
            differs = Violation("same seed, same run", 0.0, "", "played again, this seed took another course")
            outcome = replace(outcome, violations=(*outcome.violations, differs))
        outcome = replace(outcome, journal=_leading_to(outcome.violations[0], again.journal))
    return Played(outcome, spent)


def _leading_to(violation: Violation, journal: tuple[str, ...]) -> tuple[str, ...]:
    """The last lines up to ``violation`` that name its worker, or what befell the fleet.

    A line begins with its moment and with who it is about, ``*`` for the fleet.
    """
    until, told = round(violation.at, 4), []
    for line in journal:
        moment, whom, _ = line.split(maxsplit=2)
        if float(moment) <= until and (whom == "*" or violation.worker in line):
            told.append(line)
    return tuple(told[-LAST:])


def _broken(seed: int, error: Exception) -> Outcome:
    """A run that could not be played to its end; the traceback is in place of the journal."""
    what = f"{type(error).__name__}: {error}"
    return Outcome(
        seed=seed,
        trace_hash="",
        cold_starts=0,
        events=0,
        virtual_seconds=0.0,
        storage_reads=0,
        wasted=0,
        paths={},
        faults={},
        violations=(Violation("plays to its end", 0.0, "", what),),
        journal=tuple("".join(traceback.format_exception(error)).splitlines()),
    )


def main() -> None:
    """Play until nothing more is asked for."""
    task = msgspec.json.decode(sys.argv[1], type=Task)
    scenario = task.asked.scenario()
    for line in sys.stdin.buffer:
        played = play(scenario, int(line), journal=task.journal)
        sys.stdout.buffer.write(msgspec.json.encode(played) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
