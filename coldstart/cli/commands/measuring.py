"""Commands that measure this machine, and that play whole fleets in virtual time.

Decides their words on the command line; ``bench.py``, ``bench_fleet.py`` and ``simulate.py`` beside this package do the
work.
"""

from __future__ import annotations

from typing import Annotated

import typer

from coldstart.cli.commands.common import Json, be_heard
from coldstart.errors import ConfigError

benches = typer.Typer(invoke_without_command=True)


@benches.callback()
def bench(
    context: typer.Context,
    only: Annotated[
        str | None, typer.Option(metavar="A,B", help="Some of: tcp, handshake, memory, import. Default: all.")
    ] = None,
    mib: Annotated[int, typer.Option(min=16, help="Size of a transfer, in MiB.")] = 1024,
    rounds: Annotated[int, typer.Option(min=1, help="Repeats of each measurement.")] = 5,
    json: Json = False,
) -> None:
    """Measure this machine: coldstart side by side with what it could be at best. 'bench fleet' plays rollouts."""
    if context.invoked_subcommand is not None:
        return
    from coldstart.cli import bench as module

    parts = tuple(part for part in (only or "").split(",") if part.strip())
    if only is not None and not parts:
        raise ConfigError(f"--only {only!r} names no part to bench", advice=f"choose from {', '.join(module.PARTS)}")
    module.run(parts, mib=mib, rounds=rounds, json=json)
    be_heard()


@benches.command("fleet")
def bench_fleet(
    workers: Annotated[str, typer.Option(metavar="N,M", help="Sizes of fleets.")] = "1,8,64,256,1024",
    dying: Annotated[float, typer.Option(help="Share of the workers that is killed meanwhile; 0: nobody.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Of all runs: the same seed is the same run.")] = 1,
    gb: Annotated[float, typer.Option(help="Size of the model, in GB.")] = 64.0,
    chunk_mib: Annotated[int, typer.Option(help="Size of a chunk, in MiB.")] = 64,
    link_gbps: Annotated[float, typer.Option(help="Rate of each worker's link, each way, in GB/s.")] = 12.5,
    storage_gbps: Annotated[float, typer.Option(help="Rate of one storage read, in GB/s.")] = 12.5,
    storage_all_gbps: Annotated[float, typer.Option(help="Rate of all storage reads together, in GB/s.")] = 40.0,
    slots: Annotated[int, typer.Option(help="How many joiners may pull from a worker at one time.")] = 2,
    patience: Annotated[float, typer.Option(help="Seconds a joiner may lose before it reads storage.")] = 5.0,
    holders: Annotated[int, typer.Option(help="Workers that serve before; with none, the first reads storage.")] = 0,
    json: Json = False,
) -> None:
    """Play rollouts of many workers in virtual time, beside what they take on paper.

    The state machines are the real ones; links are shared evenly. Bars are said to be met or missed; the exit
    code is 0 either way.
    """
    from coldstart.cli import bench_fleet as module

    asked = module.Asked(
        module.sizes_of(workers), dying, seed, gb, chunk_mib, link_gbps, storage_gbps, storage_all_gbps, slots,
        patience, holders,
    )  # fmt: skip
    module.run(asked, json=json)
    be_heard()


def simulate(
    workers: Annotated[int, typer.Option(help="Workers of a rollout.")] = 64,
    seeds: Annotated[str, typer.Option(metavar="A..B", help="Seeds to play, both ends included, or one.")] = "0..99",
    faults: Annotated[str, typer.Option(metavar="A,B", help="Kinds of faults to draw from; all, or none.")] = "all",
    jobs: Annotated[int | None, typer.Option(help="Processes to spread the seeds over. Default: one a core.")] = None,
    chunks: Annotated[int | None, typer.Option(help="Chunks of the model.")] = None,
    chunk_mib: Annotated[int | None, typer.Option(help="Size of a chunk, in MiB.")] = None,
    spread: Annotated[float | None, typer.Option(help="Seconds within which a rollout starts.")] = None,
    storage_gbps: Annotated[float | None, typer.Option(help="Rate of a storage read, in GB/s.")] = None,
    link_gbps: Annotated[float | None, typer.Option(help="Rate of a source's link, in GB/s.")] = None,
    slots: Annotated[int | None, typer.Option(help="How many joiners may pull from a worker at one time.")] = None,
    patience: Annotated[float | None, typer.Option(help="Seconds a joiner may lose before it reads storage.")] = None,
    strikes: Annotated[int | None, typer.Option(help="Faults in one run.")] = None,
    group_size: Annotated[int | None, typer.Option(help="Ranks that start together and act as one.")] = None,
    estimates: Annotated[bool, typer.Option("--estimates", help="Workers know what links and storage give.")] = False,
    journal: Annotated[bool, typer.Option("--journal", help="Show every step; of one seed.")] = False,
    json: Json = False,
) -> None:
    """Play rollouts in virtual time with the real state machines, let faults strike, and check every promise.

    The same seed is the same run, everywhere. Exit code 0 if every promise held, 10 if one was broken: then
    each failing seed is shown with its violations, what led to them, and the command that plays it again.
    """
    from coldstart.cli import simulate as module
    from coldstart.cli.simulate_words import Asked, faults_of, seeds_of

    asked = Asked(
        workers,
        faults_of(faults),
        chunks,
        chunk_mib,
        spread,
        storage_gbps,
        link_gbps,
        slots,
        patience,
        strikes,
        group_size,
        estimates or None,
    )
    module.run(asked, seeds_of(seeds), jobs=jobs, journal=journal, json=json)
    be_heard()
