"""Writes the parts of ``simulator.md`` that come from the code and from a soak.

    python docs/simulator_page.py faults
    python docs/simulator_page.py soak [FIRST SEED]

Decides which fleets a soak plays and how its result reads. What is played is the command's matter:
each part of a soak is one ``coldstart simulate`` that anybody can repeat.
"""

from __future__ import annotations

import ast
import inspect
import os
import platform
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from coldstart import __version__
from coldstart.cli.simulate import BROKEN
from coldstart.cli.simulate_results import Result
from coldstart.testing.simulator import Fault

PAGE = Path(__file__).with_name("simulator.md")
FLEETS: Mapping[int, int] = {3: 2500, 8: 1520, 16: 960, 64: 295, 256: 80}
"""Seeds by workers; each size brings about a fifth of the cold starts."""
COLD_STARTS = 100_000
"""A soak has at least so many."""
FIRST = 1_000_000
"""Its first seed; those of the tests are below."""


def between(text: str, marker: str, body: str) -> str:
    """``text`` with ``body`` between the two comments named ``marker``; raises ValueError where they are not."""
    begin, end = f"<!-- {marker}: begin -->", f"<!-- {marker}: end -->"
    head, rest = text.split(begin)
    _, tail = rest.split(end)
    return f"{head}{begin}\n{body}\n{end}{tail}"


def faults() -> str:
    """A table of the kinds of faults, in the words of their docstrings."""
    rows = [f"| `{kind.value}` | {' '.join(said.split())} |" for kind, said in _said()]
    return "\n".join(["| kind | what befalls the fleet |", "|---|---|", *rows])


def _said() -> Iterator[tuple[Fault, str]]:
    (kinds,) = ast.parse(inspect.getsource(Fault)).body
    assert isinstance(kinds, ast.ClassDef)
    for kind, said in zip(kinds.body, kinds.body[1:], strict=False):
        match kind, said:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(text))):
                yield Fault[name], text
            case _:
                pass


def soak(page: Path, first: int, fleets: Mapping[int, int], least: int) -> int:
    """Play ``fleets`` and write what came of it into ``page``; returns the exit code.

    Broken promises are written down like anything else. A soak that was ended early is not.
    """
    results: list[Result] = []
    for workers, seeds in fleets.items():
        words = f"simulate --workers {workers} --seeds {first}..{first + seeds - 1} --faults all --json".split()
        command = [sys.executable, "-m", "coldstart.cli.main", *words]
        print("coldstart", *words, flush=True)
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        if done.returncode not in (0, BROKEN):
            return done.returncode
        results.append(msgspec.json.decode(done.stdout, type=Result))
        for failure in results[-1].failures:
            print(f"{failure.violations[0].promise}: {failure.violations[0].what}\n  replay: {failure.replay}")
    total = sum(result.cold_starts for result in results)
    if total < least:
        print(f"{total:,} cold starts are not {least:,}; give FLEETS in {__file__} more seeds", file=sys.stderr)
        return 1
    text = between(page.read_text(), "faults", faults())
    page.write_text(between(text, "soak", summary(results)))
    return BROKEN if any(result.violations for result in results) else 0


def summary(results: Sequence[Result]) -> str:
    """The last soak's section."""
    total = sum(result.cold_starts for result in results)
    cpu = sum(result.cpu_seconds for result in results)
    hours = sum(result.virtual_seconds for result in results) / 3600
    struck = _summed([result.faults for result in results])
    verdict = sum(result.violations for result in results)
    told = (
        f"{datetime.now(UTC):%Y-%m-%d}, coldstart {__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores: **{total:,} cold starts** in {sum(result.seeds for result in results):,} fleets and "
        f"{hours:,.0f} virtual hours, {sum(struck.values()):,} faults, **{verdict:,} violations**, "
        f"{total / cpu:,.0f} cold starts per CPU second."
    )
    rows = [
        f"| {result.workers:,} | {result.command.split()[5]} | {result.cold_starts:,} | {result.storage_reads:,} "
        f"| {result.cold_starts_per_cpu_second:,.0f} | {result.violations:,} |"
        for result in results
    ]
    return "\n".join(
        [
            textwrap.fill(told, 110),
            "",
            "| workers | seeds | cold starts | storage reads | per CPU second | violations |",
            "|---:|---|---:|---:|---:|---:|",
            *rows,
            "",
            textwrap.fill(f"By path: {_listed(_summed([result.paths for result in results]))}.", 110),
            "",
            textwrap.fill(f"Faults that struck: {_listed(struck)}.", 110),
        ]
    )


def _summed(counts: Sequence[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return total


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def main(words: Sequence[str]) -> int:
    """The script; returns the exit code."""
    match words:
        case ["faults"]:
            PAGE.write_text(between(PAGE.read_text(), "faults", faults()))
            return 0
        case ["soak"]:
            return soak(PAGE, FIRST, FLEETS, COLD_STARTS)
        case ["soak", first] if first.isdecimal():
            return soak(PAGE, int(first), FLEETS, COLD_STARTS)
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
