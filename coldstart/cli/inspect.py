"""``coldstart inspect``: what a builder makes of a checkpoint, tensor by tensor, before anything is moved.

Decides how a classification is shown, and the exit code: 2 where state is refused, 3 where the checkpoint
lacks weights. Stored tensors that nothing takes are told, and are no fault. Imports torch, through the
builder, and so takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, cast

import msgspec
import typer

from coldstart import config
from coldstart.classification import ClassifiedTensor, Treatment
from coldstart.cli.output import emit, say, size, table
from coldstart.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from coldstart.skeletons.assembly import Inspected

MOST_TOLD = 10
MOST_NAMED = 3
"""Tensors that are told line by line, or named in a line; --json has all."""

COLUMNS = ("class", "name", "kind", "dtype", "shape", "bytes>", "reason")


class Told(msgspec.Struct, frozen=True):
    """An inspection as ``--json`` tells it."""

    skeleton: str
    model: str
    counts: Mapping[Treatment, int]
    whole_read: str
    tensors: tuple[ClassifiedTensor, ...]
    lacking: tuple[str, ...]
    unused: tuple[str, ...]
    notice: str


def run(checkpoint: str, skeleton: str, dtype: str, *, json: bool) -> None:
    """The command; ends with exit code 2 if the module holds what is refused, 3 if the checkpoint lacks weights."""
    assembly = import_module("coldstart.skeletons.assembly")
    order = assembly.Order(checkpoint, skeleton, dtype, shelves=config.load().shelves)
    found = cast("Inspected", assembly.inspect(order))
    if json:
        counts, tensors = found.classification.counts, found.classification.tensors
        told = Told(
            found.skeleton, found.model, counts, found.whole_read, tensors, found.lacking, found.unused, found.notice
        )
        emit(told)
    else:
        _show(found)
    if found.classification.refusals:
        raise typer.Exit(ConfigError.exit_code)
    if found.lacking:
        raise typer.Exit(CheckpointError.exit_code)


def _show(found: Inspected) -> None:
    tensors, counts = found.classification.tensors, found.classification.counts
    table("", COLUMNS, [_cells(each) for each in tensors])
    say(f"{found.model}, by the {found.skeleton} skeleton: " + ", ".join(f"{n} {name}" for name, n in counts.items()))
    if found.notice:
        say(f"  {found.notice}")
    for refusal in found.classification.refusals:
        say(f"  refused: {refusal}")
    for words in found.lacking[:MOST_TOLD]:
        say(f"  lacking: {words}")
    if more := len(found.lacking[MOST_TOLD:]):
        say(f"  lacking: {more} more")
    if found.unused:
        more = len(found.unused) - MOST_NAMED
        told = ", ".join(found.unused[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        say(f"  left out, because the module has no such tensors: {told}")
    if found.lacking:
        say("  a cold start of this would fail: the checkpoint has no value for these weights")
    elif found.whole_read:
        say(f"  storage is read as a whole: {found.whole_read}")
    elif not found.classification.refusals:
        say("  storage gives only what is missing, in chunks")


def _cells(each: ClassifiedTensor) -> tuple[str, ...]:
    shape = "x".join(str(length) for length in each.shape)
    nbytes = size(each.nbytes) if each.dtype else ""
    return each.treatment, each.name, each.kind, each.dtype, shape, nbytes, each.reason
