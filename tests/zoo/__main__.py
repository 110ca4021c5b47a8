"""``python -m tests.zoo``: start every family cold and print a line for each.

Exit code 0 if all are right, 1 if one is not, 2 for a wrong argument, 130 for Ctrl-C.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from tests.zoo.families import families
from tests.zoo.outcome import Outcome, Zoo, total
from tests.zoo.start import pair

LIBRARIES = ("torch", "transformers", "diffusers")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code; raises SystemExit for wrong arguments, before anything is started."""
    words = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    words.add_argument("--only", default="*", metavar="PATTERN", help="families whose name matches (shell wildcards)")
    words.add_argument("--library", default="", choices=["", *LIBRARIES], help="families of one library")
    words.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes, for tests.zoo.page")
    asked = words.parse_args(arguments)
    chosen = [
        family
        for family in families().values()
        if fnmatch.fnmatchcase(family.name.lower(), asked.only.lower()) and asked.library in ("", family.library)
    ]
    if not chosen:
        words.error(f"no family is called {asked.only!r}{f' in {asked.library}' if asked.library else ''}")
    if asked.json and (asked.json.is_dir() or not os.access(asked.json.parent, os.W_OK)):
        words.error(f"{asked.json} cannot be written")
    begun = time.monotonic()
    outcomes: list[Outcome] = []
    try:
        with pair() as workers:
            for family in chosen:
                outcomes.append(workers.start(family))
                print(outcomes[-1].line, flush=True)
    except KeyboardInterrupt:
        print(f"interrupted after {len(outcomes)} of {len(chosen)} families; nothing is written")
        return 130
    print(total(outcomes, time.monotonic() - begun))
    if asked.json:
        asked.json.write_bytes(_written(outcomes))
    return 0 if all(outcome.right for outcome in outcomes) else 1


def _written(outcomes: list[Outcome]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(Zoo(_versions(), tuple(outcomes))), indent=1) + b"\n"


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main())
