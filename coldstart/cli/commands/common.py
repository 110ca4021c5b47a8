"""What commands have in common: options that mean the same everywhere, and how a command ends."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from coldstart.cli import output

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


def reflow(app: typer.Typer) -> None:
    """Let help be broken where the terminal ends, and not where a docstring's lines do."""
    for command in app.registered_commands:
        words = inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in words.split("\n\n"))


def be_heard() -> None:
    """End with exit code 1 if the result could not be written."""
    if output.is_lost():
        raise typer.Exit(1)
