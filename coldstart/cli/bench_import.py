"""Part ``import`` of the bench: what a host pays for ``import coldstart`` before it uses it.

Decides what is subtracted (a bare interpreter, in turn with the rest) and which modules must
not have come along.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

from coldstart.cli.bench_results import Note, Part, at_most, figure
from coldstart.errors import ColdstartError

BAR_MS = 150.0
HEAVY = ("torch", "redis", "numpy")
PER_ROUND = 3
_SECONDS = 60.0

BARE = "pass"
PACKAGE = "import coldstart"
JOIN = "from coldstart import join"


def measure(rounds: int, note: Note) -> Part:
    """Wall time of whole processes, above that of the bare interpreter's run just before."""
    note("import: warming up")
    came = {statement: _heavy(statement) for statement in (PACKAGE, JOIN)}
    above: dict[str, list[float]] = {PACKAGE: [], JOIN: []}
    for round_ in range(PER_ROUND * rounds):
        note(f"import: run {round_ + 1} of {PER_ROUND * rounds}")
        bare = _seconds(BARE)
        for statement, found in above.items():
            found.append((_seconds(statement) - bare) * 1000)
    figures = {statement: figure("ms", found) for statement, found in above.items()}
    return Part(
        figures=figures,
        bars=(
            at_most(f"{PACKAGE}, median", figures[PACKAGE].median, BAR_MS, "ms"),
            at_most(f"{PACKAGE}, of {', '.join(HEAVY)} imported", len(came[PACKAGE]), 0),
        ),
        notes=tuple(
            f"{statement} brings {', '.join(names) or 'none of ' + ', '.join(HEAVY)}"
            for statement, names in came.items()
        ),
    )


def _seconds(statement: str) -> float:
    began = time.perf_counter()
    _run(statement)
    return time.perf_counter() - began


def _heavy(statement: str) -> Sequence[str]:
    """Which of :data:`HEAVY` are imported by ``statement``."""
    printed = _run(f"{statement}; import sys; print(*[name for name in {HEAVY!r} if name in sys.modules])")
    return printed.split()


def _run(code: str) -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=_SECONDS
        )
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().splitlines()[-1:] or [f"status {error.returncode}"]
        raise ColdstartError(f"python -c '{code}' failed: {last[0]}") from error
    except subprocess.TimeoutExpired as error:
        raise ColdstartError(f"python -c '{code}' took more than {_SECONDS:g} s") from error
    return done.stdout
