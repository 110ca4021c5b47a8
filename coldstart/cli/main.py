"""``coldstart``: the commands, and how their errors end.

An error of ours is one line on stderr and its exit code; anything else is a bug and shows its
traceback. Output that cannot be written is neither (``output.py``): where the reader has left or
stdout is closed, a command ends as if all had been read; where the disk is full, it says so and
the exit code is 1, but 0 for a worker that has served: its output is not its result.

A signal ends a command with 128 and its number: 130 for Ctrl-C, 143 for SIGTERM. A worker that was
asked to end and did so ends with 0; before it has begun, SIGTERM kills it as it would any process.

The words of each command are in ``commands/``; what it does is imported when it runs, so that help is quick.
"""

from __future__ import annotations

import signal
from typing import Annotated, NoReturn

import typer

from coldstart import __version__, config
from coldstart.cli import ending, output
from coldstart.cli.commands import checking, keys, measuring, starting, watching
from coldstart.cli.commands.common import reflow
from coldstart.errors import ColdstartError

app = typer.Typer(
    name="coldstart",
    help="Cold-start inference workers from the memory of their peers, verified before they serve.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


for command in (
    starting.worker,
    starting.inspect,
    starting.demo,
    watching.peers,
    watching.watch,
    watching.journal,
    watching.exporter,
    watching.report,
    watching.drain,
    watching.trace,
    checking.plugins,
    checking.config,
    checking.doctor,
    measuring.simulate,
):
    app.command()(command)
app.add_typer(measuring.benches, name="bench")
app.add_typer(keys.keyrings, name="keys")
for each in (app, measuring.benches, keys.keyrings):
    reflow(each)


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
