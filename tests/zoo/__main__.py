"""``python -m tests.zoo``: start every family cold and print a line for each; exit code 0 if all are right."""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from tests.zoo.families import families
from tests.zoo.outcome import Outcome, Zoo, total
from tests.zoo.start import pair

LIBRARIES = ("torch", "transformers", "diffusers")


def main() -> int:
    """Returns the exit code."""
    words = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    words.add_argument("--only", default="*", metavar="PATTERN", help="families whose name matches (shell wildcards)")
    words.add_argument("--library", default="", choices=["", *LIBRARIES], help="families of one library")
    words.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes, for tests.zoo.page")
    asked = words.parse_args()
    chosen = [
        family
        for family in families().values()
        if fnmatch.fnmatchcase(family.name.lower(), asked.only.lower()) and asked.library in ("", family.library)
    ]
    begun, outcomes = time.monotonic(), []
    with pair() as workers:
        for family in chosen:
            outcome = workers.start(family)
            outcomes.append(outcome)
            print(outcome.line, flush=True)
    print(total(outcomes, time.monotonic() - begun))
    if asked.json:
        asked.json.write_bytes(_written(outcomes))
    return 0 if outcomes and all(outcome.right for outcome in outcomes) else 1


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
