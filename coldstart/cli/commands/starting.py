"""Commands that start workers, or look at what would be started.

Decides their words on the command line; ``worker.py``, ``inspect.py`` and ``demo.py`` beside this package do the work.
"""

from __future__ import annotations

from typing import Annotated

import typer

from coldstart.cli.commands.common import Json, Redis, Verbose, be_heard


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
        be_heard()


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
    be_heard()


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
    be_heard()
