"""What the processes of the benchmark say to each other, and what its result consists of.

Holds values only. Sizes are in bytes, times in seconds; a figure's own unit is in the figure.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Literal

import msgspec

Role = Literal["source", "joiner"]
Unit = Literal["GB/s", "s", "ms", "ratio", "%"]
"""GB/s are 10**9 bytes per second."""

Size = Literal["full", "quick", "toy"]


class Order(msgspec.Struct, frozen=True):
    """What one process is started for.

    Args:
        function: ``module:function`` that measures; both sides run the same one.
        devices: of source and joiner.
        options: what the case wants beside that.
        directory: shared by all processes of the run; ``log`` takes what this one prints.
    """

    case: str
    function: str
    role: Role
    devices: tuple[str, str]
    model: str
    size: Size
    rounds: int
    options: Mapping[str, str]
    directory: str
    log: str


class Figure(msgspec.Struct, frozen=True, tag=True):
    """One thing measured several times.

    ``first`` is the warm-up, where a cold start in a new process would meet it; ``values`` come after it.
    """

    label: str
    unit: Unit
    values: tuple[float, ...]
    first: float | None = None
    note: str = ""

    @property
    def best(self) -> float:
        return max(self.values) if self.unit == "GB/s" else min(self.values)

    @property
    def median(self) -> float:
        return statistics.median(self.values)


class Facts(msgspec.Struct, frozen=True, tag=True):
    """The machine: what is shown with the figures, and what decides which cases can run.

    ``transports`` and ``loaders``: name to why it cannot be used here, or nothing.
    """

    shown: Mapping[str, str]
    gpus: tuple[str, ...]
    transports: Mapping[str, str]
    loaders: Mapping[str, str]


class Failed(msgspec.Struct, frozen=True, tag=True):
    """This side could not go on. ``orphaned``: because the other side ended."""

    reason: str
    orphaned: bool = False


class Ended(msgspec.Struct, frozen=True, tag=True):
    """This side is done."""


Message = Figure | Facts | Failed | Ended


class Row(msgspec.Struct, frozen=True):
    """One line of the table: a figure with its share of ``limit``, or why there is none (``missing``)."""

    section: str
    model: str
    label: str
    figure: Figure | None = None
    limit: str = ""
    share: float | None = None
    missing: str = ""


class Result(msgspec.Struct, frozen=True):
    """One run. ``date`` is UTC, ISO 8601."""

    date: str
    size: Size
    seconds: float
    machine: Mapping[str, str]
    rows: tuple[Row, ...]
