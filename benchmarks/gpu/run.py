"""One run: the cases in turn, each row shown and kept as soon as it is there.

Decides what becomes of a case that fails, and that a run ends in its time: what is left then is said to be
not measured. It must not know how anything is measured.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.gpu import pair, table
from benchmarks.gpu.cases import Case, plan, wanted
from benchmarks.gpu.words import Facts, Figure, Message, Order, Result, Role, Row, Size

FACTS: Final = Case("facts", "", "benchmarks.gpu.facts:find", 60)
LEAST_SECONDS: Final = 5.0
"""A case that cannot have so long is not begun."""


class Plan(msgspec.Struct, frozen=True):
    """What was asked for.

    Args:
        devices: of source and joiner.
        only: words of which a case's name must have one; empty: all.
        seconds: what the whole run may take.
        json: where the result is kept, row by row.
        logs: where the processes' own output is kept; empty: nowhere.
    """

    devices: tuple[str, str]
    size: Size
    rounds: int
    only: tuple[str, ...] = ()
    seconds: float = 470.0
    json: str = ""
    logs: str = ""


class Run:
    """The rows so far, and how they are added to."""

    def __init__(self, asked: Plan, show: Callable[[str], None]) -> None:
        self._asked, self._show = asked, show
        self._began = time.monotonic()
        self._date = datetime.now(UTC).isoformat(timespec="seconds")
        self._machine: Mapping[str, str] = {}
        self._rows: list[Row] = []
        self._medians: dict[str, float] = {}
        self._section = ""

    def run(self) -> Result:
        """Measure everything that was asked for."""
        pair.warm()
        directory = tempfile.mkdtemp(prefix="coldstart-gpu-")
        try:
            return self._measure(directory)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _measure(self, directory: str) -> Result:
        found: list[Facts] = []

        def keep(message: Message) -> None:
            if isinstance(message, Facts):
                found.append(message)

        why = pair.run(self._orders(FACTS, directory), FACTS.seconds, keep)
        if why or not found:
            raise SystemExit(f"this machine cannot be looked at: {why}")
        (facts,) = found
        self._machine = facts.shown
        for text in (*table.machine(facts.shown), "", table.heading()):
            self._show(text)
        for case in wanted(plan(facts, self._asked.size), self._asked.only):
            self._case(case, directory)
        return self.result()

    def _case(self, case: Case, directory: str) -> None:
        left = self._asked.seconds - (time.monotonic() - self._began)
        if case.missing or left < LEAST_SECONDS:
            why = case.missing or f"the {self._asked.seconds:.0f} s of this run were over"
        else:
            why = pair.run(self._orders(case, directory), min(case.seconds, left), lambda said: self._hear(case, said))
        if why:
            self._add(Row(case.section, case.model, case.name, missing=why))

    def _hear(self, case: Case, said: Message) -> None:
        if not isinstance(said, Figure):
            return
        limit = next((held for start, held in case.limits.items() if said.label.startswith(start)), "")
        share = said.median / self._medians[limit] if said.unit == "GB/s" and limit in self._medians else None
        if said.unit == "GB/s":
            self._medians.setdefault(said.label, said.median)
        self._add(Row(case.section, case.model, said.label, said, limit, share))

    def _add(self, row: Row) -> None:
        if row.section != self._section:
            self._section = row.section
            self._show(f"\n-- {row.section}")
        self._show(table.line(row))
        self._rows.append(row)
        if self._asked.json:
            target = Path(self._asked.json)
            partial = target.with_name(target.name + ".partial")
            partial.write_bytes(msgspec.json.format(msgspec.json.encode(self.result()), indent=1))
            partial.replace(target)

    def result(self) -> Result:
        """What is known by now."""
        seconds = round(time.monotonic() - self._began, 1)
        return Result(self._date, self._asked.size, seconds, self._machine, tuple(self._rows))

    def _orders(self, case: Case, directory: str) -> tuple[Order, Order]:
        def order(role: Role) -> Order:
            logs = self._asked.logs or directory
            os.makedirs(logs, exist_ok=True)
            return Order(
                case=case.name,
                function=case.function,
                role=role,
                devices=self._asked.devices,
                model=case.model,
                size=self._asked.size,
                rounds=min(self._asked.rounds, case.rounds or self._asked.rounds),
                options=case.options,
                directory=directory,
                log=str(Path(logs, f"{case.name} {role}.log".replace(" ", "-"))),
            )

        return order("source"), order("joiner")
