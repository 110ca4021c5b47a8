"""``python -m benchmarks.fleet``: what was asked for, and where the result goes.

Ends with 0 when all cases came to a result, whatever the bar says, and also where such a network may not
be made: then it says why. Ctrl-C and SIGTERM take everything down.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from benchmarks.fleet.cases import Failed, Rollouts, Store, kernel
from benchmarks.fleet.network import NotAllowed, network
from benchmarks.fleet.predicted import predicted
from benchmarks.fleet.results import Case, Result, table, verdicts
from benchmarks.fleet.undisturbed import undisturbed
from coldstart import __version__, config
from coldstart.cli.bench_room import MIB, need_room, write_checkpoint
from coldstart.cli.simulate import cores
from coldstart.errors import ColdstartError


def main(arguments: list[str] | None = None) -> int:
    """Play the cases and print what came out; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description="a rollout over shaped links")
    parser.add_argument("--workers", type=int, default=8, help="that start at once")
    parser.add_argument("--mbit", type=float, default=200.0, help="10^6 bits per second of each link, each way")
    parser.add_argument("--storage-mbit", type=float, default=0.0, help="of one storage read; default: as a link")
    parser.add_argument("--mib", type=int, default=96, help="size of the model")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="a setting of all workers")
    parser.add_argument("--json", default="", help="file for the result")
    parser.add_argument("--keep", default="", help="directory, made here, that keeps what every process said")
    asked = parser.parse_args(arguments)
    settings = dict(word.split("=", 1) for word in asked.set)
    signal.signal(signal.SIGTERM, _leave)
    try:
        result = measure(asked, settings)
    except NotAllowed as reason:
        print(f"skipped: {reason}")
        return 0
    except (Failed, ColdstartError) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(table(result), *verdicts(result), sep="\n")
    if asked.json:
        Path(asked.json).write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    return 0


def measure(asked: argparse.Namespace, settings: Mapping[str, str]) -> Result:
    """One and all, from a holder and from storage."""
    nbytes, link, storage = asked.mib * MIB, asked.mbit * 1e6 / 8, (asked.storage_mbit or asked.mbit) * 1e6 / 8
    many, load, chosen = asked.workers, os.getloadavg()[0], config.load(settings)
    with ExitStack() as resources:
        place = Path(asked.keep or resources.enter_context(tempfile.TemporaryDirectory(prefix="coldstart-fleet-")))
        place.mkdir(exist_ok=True)
        need_room(place, nbytes, arenas=many + 1, processes=many + 1)
        made = resources.enter_context(network(many + 1, asked.mbit))
        with undisturbed():
            store = resources.enter_context(closing(Store(made, place)))
        store.ready()
        remembered = {"cache": str(place / "cache"), **settings}  # by nobody but these workers
        rollouts = Rollouts(made, store, write_checkpoint(place / "model", nbytes), place, remembered, storage)
        cases: list[Case] = []
        for workers, holders in ((1, 1), (many, 1), (1, 0), (many, 0)):
            name = f"{workers} from {'a holder' if holders else 'storage'}"
            print(f"{name} ...", file=sys.stderr, flush=True)
            seconds = predicted(workers, holders, nbytes=nbytes, link=link, storage=storage, settings=chosen)
            cases.append(rollouts.play(name, workers=workers, holders=holders, predicted=seconds))
        return Result(
            version=__version__,
            python=platform.python_version(),
            kernel=kernel(),
            cpus=cores(),
            load=round(load, 1),
            store=store.version,
            date=datetime.now(UTC).date().isoformat(),
            nbytes=nbytes,
            mbit=asked.mbit,
            storage=storage,
            settings=settings,
            cases=tuple(cases),
        )


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
