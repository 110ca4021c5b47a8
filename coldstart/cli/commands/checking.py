"""Commands that look at this machine: what is installed, what is set, what works.

Decides their words on the command line; ``plugins.py``, ``settings.py`` and ``doctor.py`` beside this package do the
work.
"""

from __future__ import annotations

from typing import Annotated

import typer

from coldstart.cli.commands.common import Json, Redis, be_heard


def plugins(json: Json = False) -> None:
    """Show installed transports and skeletons, whether they can be used here, and why not."""
    from coldstart.cli import plugins as module

    module.run(json=json)
    be_heard()


def config(
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
    be_heard()


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
    be_heard()
