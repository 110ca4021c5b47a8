"""Commands that look at a fleet through its store, or have a worker leave it.

Decides their words on the command line; the modules of the same names beside this package do the work.
"""

from __future__ import annotations

from typing import Annotated

import typer

from coldstart.cli.commands.common import Json, Redis, be_heard


def peers(redis: Redis = None, json: Json = False) -> None:
    """Show who holds which weights, with free slots, from the store's adverts."""
    from coldstart.cli import peers as module

    module.run(redis, json=json)
    be_heard()


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
    be_heard()


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
    be_heard()


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
    be_heard()


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
    be_heard()


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
    be_heard()
