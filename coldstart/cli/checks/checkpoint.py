"""Whether a checkpoint can be read from here: its headers, wherever it is.

Decides what of it an operator should know before a fleet is started on it. No weights are read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from coldstart.cli.checks.check import Check, ok
from coldstart.cli.output import seconds, size
from coldstart.shelves.location import ShelfSettings
from coldstart.shelves.open import find


def readable(checkpoint: str, settings: ShelfSettings) -> Sequence[Check]:
    """What is there; raises ColdstartError, as a cold start would, with what to do. Blocks."""
    began = time.monotonic()
    found = find(checkpoint, settings).checkpoint
    took = time.monotonic() - began
    nbytes = sum(tensor.nbytes for tensor in found.tensors.values())
    what = f"{len(found.tensors)} tensors of {size(nbytes)} in {len(found.files)} of its files"
    return [ok("checkpoint", f"{found.origin or found.path}: {what}, headers read in {seconds(took)}")]
