"""``coldstart keys``: commands that make and change the keys of a fleet.

Decides their words on the command line; ``keys.py`` beside this package does the work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coldstart.cli.commands.common import Json, be_heard

keyrings = typer.Typer(no_args_is_help=True, help="Make and change the keys by which a fleet authenticates messages.")


@keyrings.command("new")
def keys_new(file: Annotated[Path, typer.Argument(metavar="FILE")], json: Json = False) -> None:
    """Write a new file of keys, for COLDSTART_KEYS of every worker; readable by its owner alone."""
    from coldstart.cli import keys as module

    module.new(file, json=json)
    be_heard()


@keyrings.command("rotate")
def keys_rotate(file: Annotated[Path, typer.Argument(metavar="FILE")], json: Json = False) -> None:
    """Take the next of three steps of a change of the signing key; after each, give the file to all workers.

    First a new key is added, then it signs, then the old one is dropped. Workers read the file anew by themselves.
    """
    from coldstart.cli import keys as module

    module.rotate(file, json=json)
    be_heard()


@keyrings.command("check")
def keys_check(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Default: COLDSTART_KEYS.")] = None,
    json: Json = False,
) -> None:
    """Say which keys a file holds, by name, and what is to be done next; exit code 2 if a worker would refuse it."""
    from coldstart.cli import keys as module

    module.check(file, json=json)
    be_heard()
