"""``coldstart bench fleet``: how long a rollout of many takes, played with the real state machines.

Decides which fleets are played and with what figures: equal links that are shared evenly, storage with a
rate for each reader and one for all of them together, and in half of the runs workers that are killed at
random moments. What it takes on paper is in ``bench_fleet_formulas.py``, what is counted and how it looks
in ``bench_fleet_results.py``; ``coldstart.testing.simulator`` plays.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from coldstart import __version__
from coldstart.cli import bench_fleet_formulas as paper
from coldstart.cli import output
from coldstart.cli.bench_fleet_results import Paper, Result, Rollout, Row, bars, show
from coldstart.cli.bench_results import Note
from coldstart.errors import ConfigError
from coldstart.plan import Limits
from coldstart.testing.simulator import Fabric, Fault, Scenario, simulate

DYING = (Fault.CRASH, Fault.VANISH)
"""A process that is killed, and a host that is gone without a word."""
LANDINGS = 2_000_000
"""About so many chunks land in one run at most: very large fleets have larger chunks, and the table says so."""
FEWEST_CHUNKS = 64

_RANGES: Mapping[str, tuple[float, float]] = {
    "dying": (0, 0.9),
    "gb": (0.001, 100_000),
    "chunk_mib": (1, 65_536),
    "link_gbps": (0.001, 10_000),
    "storage_gbps": (0.001, 10_000),
    "storage_all_gbps": (0.001, 1_000_000),
    "slots": (1, 1024),
    "patience": (0.001, 86_400),
    "holders": (0, 1024),
}
"""Least and most of each number."""
MOST_WORKERS = 100_000


class Asked(msgspec.Struct, frozen=True):
    """The fleets and their world. 1 GB and 1 GB/s are 10^9 bytes.

    Args:
        workers: sizes of fleets, each of which is played by itself.
        dying: share of the workers that is killed during the rollout; 0: nobody.
        seed: of all runs.
        gb, chunk_mib: of the model.
        link_gbps: of each worker's link, in each direction.
        storage_gbps, storage_all_gbps: of one storage read, and of all of them together.
        slots: joiners that may pull from a worker at one time.
        patience: seconds that a joiner may lose before it reads storage.
        holders: workers that serve before the rollout; with none, the first of the rollout reads storage.
    """

    workers: tuple[int, ...] = (1, 8, 64, 256, 1024)
    dying: float = 0.05
    seed: int = 1
    gb: float = 64.0
    chunk_mib: int = 64
    link_gbps: float = 12.5
    storage_gbps: float = 12.5
    storage_all_gbps: float = 40.0
    slots: int = 2
    patience: float = Limits().patience
    holders: int = 0

    def checked(self) -> Asked:
        """Itself; raises ConfigError where a number is out of its range."""
        for field, (least, most) in _RANGES.items():
            value = getattr(self, field)
            if not least <= value <= most:
                raise ConfigError(f"{_option(field)} is {value}", advice=f"use {least:g} to {most:g}")
        return self

    @property
    def nbytes(self) -> float:
        return self.gb * 1e9

    def scenario(self, workers: int) -> Scenario:
        """A rollout of ``workers``, all at once, with nobody dying.

        The floor is half of what a joiner gets from a source with all slots taken, so that sharing is
        never a reason to leave a source.
        """
        link = self.link_gbps * 1e9
        exact = max(1, round(self.nbytes / (self.chunk_mib << 20)))
        chunks = min(exact, max(FEWEST_CHUNKS, LANDINGS // workers))
        return Scenario(
            workers=workers,
            holders=self.holders,
            chunks=chunks,
            chunk_bytes=round(self.nbytes / chunks),
            spread=0.0,
            storage=self.storage_gbps * 1e9,
            fabric=Fabric(link, link, self.storage_all_gbps * 1e9, even=True),
            slots=self.slots,
            limits=Limits(patience=self.patience, floor=link / (2 * self.slots)),
            link_known=link,
            storage_known=self.storage_gbps * 1e9,
        )

    def command(self) -> str:
        """The command line that asks for this."""
        usual = Asked()
        words = ["coldstart bench fleet", f"--workers {','.join(str(number) for number in self.workers)}"]
        for field in self.__struct_fields__[1:]:
            value = getattr(self, field)
            if value != getattr(usual, field):
                words.append(f"{_option(field)} {value}")
        return " ".join(words)


def run(asked: Asked, *, json: bool) -> None:
    """Play all fleets and show what was found.

    Args:
        json: one JSON object on stdout instead of tables.

    Raises:
        ConfigError: a number is out of its range.
    """
    result = measure(asked.checked(), (lambda text: None) if json and not output.STDERR.is_terminal else output.note)
    if json:
        output.emit(result)
    else:
        show(result)


def measure(asked: Asked, note: Note) -> Result:
    """Play one worker alone, then each fleet without and with workers dying."""
    one = _play(asked.scenario(1), asked.seed, alone=0.0)
    single = _play(replace(asked.scenario(1), holders=1), asked.seed, alone=one.seconds)
    rows = []
    for workers in asked.workers:
        scenario = asked.scenario(workers)
        note(f"{workers:,} workers")
        quiet = _play(scenario, asked.seed, alone=one.seconds)
        dying, strikes = None, _deaths(workers, asked.dying)
        if strikes:
            note(f"{workers:,} workers, of which {strikes:,} die")
            deadly = replace(scenario, faults=DYING, strikes=strikes, trouble=quiet.seconds)
            dying = _play(deadly, asked.seed, alone=one.seconds)
        rows.append(Row(workers, scenario.chunks, scenario.chunk_bytes, _on_paper(asked, scenario), quiet, dying))
    return Result(
        command=asked.command(),
        version=__version__,
        python=platform.python_version(),
        date=datetime.now(UTC).date().isoformat(),
        one=one,
        rows=rows,
        bars=bars(rows, single.most_calls),
        notes=_notes(asked),
    )


def _deaths(workers: int, share: float) -> int:
    """How many are killed: at least one of several, nobody of one."""
    return max(1, round(workers * share)) if share and workers > 1 else 0


def _play(scenario: Scenario, seed: int, *, alone: float) -> Rollout:
    began = time.process_time()
    outcome = simulate(scenario, seed)
    cpu = time.process_time() - began
    moments = sorted(served.at for served in outcome.served.values())
    calls = [served.calls for served in outcome.served.values()]
    last = moments[-1]
    return Rollout(
        seconds=round(last, 4),
        times=round(last / alone, 4) if alone else 1.0,
        median=round(statistics.median(moments), 4),
        served=len(moments),
        killed=sum(outcome.faults.values()),
        storage_reads=outcome.storage_reads - outcome.holders_reads,
        paths=outcome.paths,
        own_calls=statistics.median(calls),
        most_calls=max(calls),
        all_calls=round(outcome.rollout_calls / len(moments), 2),
        letters=statistics.median(served.letters for served in outcome.served.values()),
        violations=len(outcome.violations),
        cpu_seconds=round(cpu, 2),
        trace_hash=outcome.trace_hash,
    )


def _on_paper(asked: Asked, scenario: Scenario) -> Paper:
    workers, chunk, holders = scenario.workers, scenario.chunk_bytes, asked.holders
    nbytes, link, reader = asked.nbytes, asked.link_gbps * 1e9, asked.storage_gbps * 1e9
    one = paper.alone(nbytes, link, reader, holders)
    return Paper(
        storage_for_all=paper.storage_for_all(workers, nbytes, link, reader, asked.storage_all_gbps * 1e9) / one,
        doubling=paper.doubling(workers, nbytes, link, reader, holders, asked.slots) / one,
        chain=paper.chain(workers, nbytes, chunk, link, reader, holders) / one,
        pipeline=paper.pipeline(workers, nbytes, chunk, link, reader, holders) / one,
    )


def _notes(asked: Asked) -> tuple[str, ...]:
    beginning = f"{asked.holders} hold it already" if asked.holders else "nobody holds it: the first one reads storage"
    return (
        f"model of {asked.gb:g} GB in chunks of {asked.chunk_mib} MiB; {beginning}",
        f"links {asked.link_gbps:g} GB/s each way, shared evenly by up to {asked.slots} joiners; storage "
        f"{asked.storage_gbps:g} GB/s for one reader, {asked.storage_all_gbps:g} GB/s for all; "
        f"patience {asked.patience:g} s",
        f"killed during the rollout: {asked.dying:.0%}, in half the cases one that lends; they start anew, and count "
        "only if they served before",
    )


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def sizes_of(text: str) -> tuple[int, ...]:
    """``1,8,64``: sizes of fleets, in the order given; raises ConfigError for anything else."""
    words = [word.strip().replace("_", "") for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() and 1 <= int(word) <= MOST_WORKERS for word in words):
        raise ConfigError(f"--workers {text!r} names no sizes", advice=f"give some from 1 to {MOST_WORKERS}: 1,8,64")
    return tuple(dict.fromkeys(int(word) for word in words))
