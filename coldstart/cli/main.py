"""``coldstart``: the commands, and how their errors end.

An error of ours is one line on stderr and its exit code; anything else is a bug and shows its
traceback. Output that cannot be written is neither (``output.py``): where the reader has left or
stdout is closed, a command ends as if all had been read; where the disk is full, it says so and
the exit code is 1, but 0 for a worker that has served: its output is not its result.

A signal ends a command with 128 and its number: 130 for Ctrl-C, 143 for SIGTERM. A worker that was
asked to end and did so ends with 0; before it has begun, SIGTERM kills it as it would any process.

Command modules are imported when their command runs, so that help is quick.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from coldstart import __version__, config
from coldstart.cli import ending, output
from coldstart.errors import ColdstartError, ConfigError

app = typer.Typer(
    name="coldstart",
    help="Cold-start inference workers from the memory of their peers, verified before they serve.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
benches = typer.Typer(invoke_without_command=True)
app.add_typer(benches, name="bench")
keyrings = typer.Typer(no_args_is_help=True, help="Make and change the keys by which a fleet authenticates messages.")
app.add_typer(keyrings, name="keys")

Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Redis = Annotated[
    str | None,
    typer.Option(
        "--redis",
        metavar="URL",
        help="redis://, rediss:// or unix:// URL of the store; 'none' for storage only. Default: COLDSTART_REDIS, "
        "or a Valkey of this machine that the first process starts.",
    ),
]
Verbose = Annotated[int, typer.Option("--verbose", "-v", count=True, help="More log lines; repeat for more.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"coldstart {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Every setting is also an environment variable COLDSTART_<NAME>, or a line in a file; see 'coldstart config'."""
    for given, meant in config.slips().items():
        output.note(f"coldstart: warning: {given} is no setting; did you mean {meant}?")


@app.command()
def worker(
    checkpoint: Annotated[
        str,
        typer.Option(
            metavar="DIR|URL", help="Directory with safetensors, or one file; s3://, gs:// or az:// for a store."
        ),
    ],
    redis: Redis = None,
    skeleton: Annotated[
        str, typer.Option(metavar="NAME", help="Builder of the module; see 'coldstart plugins'.")
    ] = "auto",
    name: Annotated[str, typer.Option(metavar="NAME", help="This worker's name, unique in the fleet.")] = "",
    device: Annotated[str, typer.Option(help="cpu or cuda[:N].")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Requested dtype, such as bfloat16; default: the checkpoint's own.")] = "",
    revision: Annotated[str, typer.Option(help="Separates versions that files alone do not tell apart.")] = "",
    transports: Annotated[str | None, typer.Option(metavar="A,B", help="Transports to use, best first.")] = None,
    host: Annotated[str | None, typer.Option(help="Address at which peers reach this worker.")] = None,
    slots: Annotated[int | None, typer.Option(help="How many joiners may pull from this worker at one time.")] = None,
    lend_gbps: Annotated[float | None, typer.Option(help="Cap on what this worker sends, in GB/s; 0: none.")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Show metrics to Prometheus at this port, /metrics.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Group that this worker is a rank of; another name at each start of it."),
    ] = None,
    group_size: Annotated[int, typer.Option(help="Ranks in the group.")] = 1,
    group_index: Annotated[int, typer.Option(help="This rank, from 0.")] = 0,
    torchrun: Annotated[bool, typer.Option("--torchrun", help="Group, size and rank are what torchrun says.")] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Leave when the weights are verified, instead of lending.")
    ] = False,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Cold-start one worker, then lend its weights until SIGTERM or Ctrl-C.

    Weights come from a peer that has them, or from the checkpoint. Progress is a bar on a terminal,
    plain lines in a pipe, and one JSON object a line with --json. The ranks of a group are taken for one
    tensor-parallel model: each exchanges weights with its counterparts, and they serve together or not at all.
    """
    from coldstart.cli import worker as module
    from coldstart.cli.ranks import group_of

    settings = {
        "redis": redis,
        "transports": transports,
        "host": host,
        "slots": slots,
        "lend_gbps": lend_gbps,
        "metrics_port": metrics_port,
    }
    ranks = group_of(group, group_size, group_index, torchrun=torchrun)
    asked = module.Asked(
        checkpoint, skeleton, name, device, dtype, revision, once=once, json=json, verbose=verbose, group=ranks
    )
    module.run(asked, settings)
    if once:
        _be_heard()


@app.command()
def inspect(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT", help="Directory with safetensors, or one file; s3://, gs:// or az:// for a store."
        ),
    ],
    skeleton: Annotated[
        str, typer.Option(metavar="NAME", help="Builder of the module; see 'coldstart plugins'.")
    ] = "auto",
    dtype: Annotated[str, typer.Option(help="Requested dtype, such as bfloat16; default: the checkpoint's own.")] = "",
    json: Json = False,
) -> None:
    """Show what a cold start of this checkpoint would carry, recompute, leave to serving, or refuse.

    Builds the module without its weights. Exit code 2 if it holds state that is refused, 3 if the checkpoint lacks
    weights of it; tensors of the checkpoint that are none of its own are told and left out.
    """
    from coldstart.cli import inspect as module

    module.run(checkpoint, skeleton, dtype, json=json)
    _be_heard()


@app.command()
def demo(
    checkpoint: Annotated[
        str, typer.Option(metavar="DIR", help="Checkpoint to use instead of the MiniLM encoder.")
    ] = "",
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Start four workers on one checkpoint, kill a source in mid-transfer, and compare what they compute.

    The first worker reads storage; the others cold-start from peers over TCP. Exit code 0 only if every
    worker serves verified weights, storage was read once, and all results equal an ordinarily loaded model's.
    """
    from coldstart.cli import demo as module

    module.run(checkpoint, json=json, verbose=verbose)
    _be_heard()


@app.command()
def peers(redis: Redis = None, json: Json = False) -> None:
    """Show who holds which weights, with free slots, from the store's adverts."""
    from coldstart.cli import peers as module

    module.run(redis, json=json)
    _be_heard()


@app.command()
def watch(
    redis: Redis = None,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How often to look.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once.")] = False,
    json: Json = False,
) -> None:
    """Watch a fleet: who holds which weights, who receives from whom and how fast, refusals, fallbacks, failures.

    In place on a terminal, in plain lines in a pipe, one JSON value a line with --json. Goes on when the store
    vanishes and comes back. Progress is as of the last advert, two seconds old at most.
    """
    from coldstart.cli import watch as module

    module.run(redis, every, once=once, json=json)
    _be_heard()


@app.command()
def journal(
    redis: Redis = None,
    worker: Annotated[str, typer.Option(metavar="NAME", help="Of this worker alone.")] = "",
    last: Annotated[int, typer.Option(min=0, metavar="N", help="The last so many; 0: all that is kept.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    json: Json = False,
) -> None:
    """Show what workers have written down of their cold starts: phases, pulls, refusals, stalls, reasons, loans.

    Kept in the store for a week. Times are on the store's clock, shown in this machine's zone; --json tells them
    in seconds of the epoch, one value a line. With --follow each line waits three seconds for those that happened
    before it; what comes later than that is marked.
    """
    from coldstart.cli import journal as module

    module.run(redis, worker, last, follow=follow, json=json)
    _be_heard()


@app.command()
def exporter(
    redis: Redis = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where Prometheus asks; 0: any free port.")] = 9465,
    host: Annotated[str, typer.Option(help="Address at which this port is opened.")] = "0.0.0.0",
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How often to look.")] = 5.0,
) -> None:
    """Show a whole fleet's metrics to Prometheus, from the store: failed starts of workers that are gone, too.

    Starts by outcome, failures, fallbacks, wrong bytes and truth conflicts by version, and who holds what. Goes on
    when the store vanishes and comes back. One of them for a fleet will do. Ends with SIGTERM or Ctrl-C.
    """
    from coldstart.cli import exporter as module

    module.run(redis, host, port, every)


@app.command()
def report(
    redis: Redis = None,
    out: Annotated[str, typer.Option(metavar="FILE", help="Where to write it; '-': stdout.")] = "fleet.html",
    last: Annotated[
        str, typer.Option(metavar="TIME", help="Cold starts of the last so long, such as 30m, 1h or 7d.")
    ] = "1d",
) -> None:
    """Write a fleet's cold starts into one HTML file: who started when and from whom, bytes, fallbacks with reasons.

    From the journal in the store, which is kept for a week. The file loads nothing and has no script.
    """
    from coldstart.cli import report as module

    module.run(redis, out, last)
    _be_heard()


@app.command()
def drain(
    worker: Annotated[str, typer.Argument(metavar="WORKER", help="Its name, as 'coldstart peers' shows it.")],
    redis: Redis = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to wait for transfers in flight to end.")] = 30.0,
    json: Json = False,
) -> None:
    """Have a worker leave: it takes no more joiners, lets transfers in flight end, and then says so.

    A 'coldstart worker' ends then; any other host serves on and lends no more. Exit code 1 if it does not say so
    in time, 2 if nobody is called so.
    """
    from coldstart.cli import drain as module

    module.run(worker, redis, seconds, json=json)
    _be_heard()


@app.command()
def trace(
    run: Annotated[
        str,
        typer.Argument(metavar="[RUN]", help="A worker, a group, or how the id of a trace or of a cold start begins."),
    ] = "",
    last: Annotated[bool, typer.Option("--last", help="The one that began last.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="All that the journal tells of; the default.")] = False,
    redis: Redis = None,
    json: Json = False,
) -> None:
    """Draw the timeline of a cold start from the journal in the store: phases, sources, bytes, refusals, reasons.

    What a trace would show, without any collector. Times of different workers are comparable: all of them are
    placed on the store's clock.
    """
    from coldstart.cli import trace as module

    module.run(redis, run, last=last, listed=listed, json=json)
    _be_heard()


@app.command()
def plugins(json: Json = False) -> None:
    """Show installed transports and skeletons, whether they can be used here, and why not."""
    from coldstart.cli import plugins as module

    module.run(json=json)
    _be_heard()


@app.command("config")
def config_command(
    given: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="As if given as arguments of a program.")
    ] = None,
    explain: Annotated[
        str, typer.Option("--explain", metavar="NAME", help="What this setting decides, and why its default is so.")
    ] = "",
    template: Annotated[
        bool, typer.Option("--template", help="A commented file of settings to start from, on stdout.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the settings that hold, and where each comes from.

    Arguments beat COLDSTART_<NAME> in the environment, which beats a file: the one that COLDSTART_CONFIG names,
    or ~/.config/coldstart/config.toml, or /etc/coldstart/config.toml. Passwords are not shown.
    """
    from coldstart.cli import settings as module

    module.run(given or (), explain=explain, as_template=template, json=json)
    _be_heard()


@app.command()
def doctor(
    redis: Redis = None,
    links: Annotated[
        str,
        typer.Option("--links", metavar="PEER", help="Measure every transport to this worker, or to one on this host."),
    ] = "",
    checkpoint: Annotated[
        str, typer.Option(metavar="DIR|URL", help="See, too, whether this checkpoint can be read from here.")
    ] = "",
    json: Json = False,
) -> None:
    """Check this machine: the store, the clock, transports, a real transfer, permissions; and say what to do.

    Also what its GPUs, RDMA devices and network cards can do, how fast each link was, and why not more.
    """
    from coldstart.cli import doctor as module

    module.run(redis, links, checkpoint, json=json)
    _be_heard()


@keyrings.command("new")
def keys_new(file: Annotated[Path, typer.Argument(metavar="FILE")], json: Json = False) -> None:
    """Write a new file of keys, for COLDSTART_KEYS of every worker; readable by its owner alone."""
    from coldstart.cli import keys as module

    module.new(file, json=json)
    _be_heard()


@keyrings.command("rotate")
def keys_rotate(file: Annotated[Path, typer.Argument(metavar="FILE")], json: Json = False) -> None:
    """Take the next of three steps of a change of the signing key; after each, give the file to all workers.

    First a new key is added, then it signs, then the old one is dropped. Workers read the file anew by themselves.
    """
    from coldstart.cli import keys as module

    module.rotate(file, json=json)
    _be_heard()


@keyrings.command("check")
def keys_check(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Default: COLDSTART_KEYS.")] = None,
    json: Json = False,
) -> None:
    """Say which keys a file holds, by name, and what is to be done next; exit code 2 if a worker would refuse it."""
    from coldstart.cli import keys as module

    module.check(file, json=json)
    _be_heard()


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
    _be_heard()


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
    _be_heard()


@app.command()
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
    _be_heard()


def _be_heard() -> None:
    """End with exit code 1 if the result could not be written."""
    if output.is_lost():
        raise typer.Exit(1)


def main() -> NoReturn:
    """Run the command line."""
    output.guard()
    code = 0
    try:
        app(standalone_mode=True)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except ColdstartError as error:
        output.note(f"coldstart: {error}")
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is left that it could interrupt
    ending.leave(code)


if __name__ == "__main__":
    main()
