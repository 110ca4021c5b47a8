"""``python -m tests.fuzz [NAME ...] --seconds N``: fuzz for a while; what is found is kept in ``corpus/``.

By mutation, or with ``--atheris`` guided by coverage, one target a run (``pip install atheris``).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import random
import sys
import time
import traceback
from pathlib import Path

from tests.fuzz.mutation import inputs
from tests.fuzz.targets import TARGETS, run, seeds

CORPUS = Path(__file__).parent / "corpus"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz what reads what others wrote.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each target")
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--atheris", action="store_true", help="guided by coverage; one target")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    names = asked.names or list(TARGETS)
    if asked.atheris:
        return _guided(names[0], asked.seconds)
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(1 << 32)
    found = [name for name in names if not _mutated(name, asked.seconds, seed)]
    return 1 if found else 0


def _mutated(name: str, seconds: float, seed: int) -> bool:
    """Whether nothing was found."""
    until, tried = time.monotonic() + seconds, 0
    for data in inputs(seeds(name), random.Random(f"{seed} {name}")):
        if time.monotonic() >= until:
            break
        tried += 1
        try:
            run(name, data)
        except Exception:
            path = CORPUS / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
            path.write_bytes(data)
            traceback.print_exc()
            print(f"{name}: found after {tried} inputs of seed {seed}; kept as {path}")
            return False
    print(f"{name}: {tried} inputs of seed {seed}, nothing found")
    return True


def _guided(name: str, seconds: float) -> int:
    atheris = importlib.import_module("atheris")
    atheris.instrument_all()
    folder = CORPUS / f".{name}"
    folder.mkdir(exist_ok=True)
    for number, data in enumerate(seeds(name)):
        (folder / f"seed{number}").write_bytes(data)
    prefix = f"-artifact_prefix={CORPUS}/{name}-"
    atheris.Setup([sys.argv[0], str(folder), f"-max_total_time={seconds:.0f}", prefix], lambda data: run(name, data))
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
