"""The source's engines: memory that peers may read has engines of its own, for as long as somebody needs it.

An engine's registrations end with it, so nothing is ever taken out of a live one. A worker lends one
memory, so in practice there is one set of engines, opened before it is needed. It must not know
grants; ``lender.py`` counts them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from coldstart.errors import TransportError
from coldstart.layout import Span
from coldstart.ports import Memory
from coldstart_transfer_engine.library import Engine, Route
from coldstart_transfer_engine.places import Table

_log = logging.getLogger(__name__)

Open = Callable[[Route, str], Engine]
"""Starts an engine for a route and a device."""


class Export:
    """Memory that is registered with one engine per route; keeps the memory where it is."""

    def __init__(self, memory: Memory, table: Table, engines: Sequence[Engine]) -> None:
        self.memory, self.table, self.engines = memory, table, engines
        self.holders = 0


def table_of(memory: Memory) -> Table:
    return Table.of(memory.regions(Span(0, memory.layout.nbytes)))


class Exports:
    """All exports of a worker. Calls block for milliseconds and may come from any thread."""

    def __init__(self, routes: Sequence[Route], opened: Open) -> None:
        self._routes, self._opened = routes, opened
        self._lock = threading.Lock()
        self._exports: list[Export] = []

    def hold(self, memory: Memory) -> Export:
        """The export of ``memory`` as it lies now, until :meth:`release`.

        Raises:
            TransportError: no route's engine takes it.
        """
        table = table_of(memory)
        with self._lock:
            for export in self._exports:
                if export.memory is memory and export.table.places == table.places:
                    break
            else:
                export = Export(memory, table, self._engines(table, memory.device))
                self._exports.append(export)
            export.holders += 1
            return export

    def release(self, export: Export) -> None:
        """One holder less; the last one out ends the engines."""
        with self._lock:
            export.holders -= 1
            if export.holders == 0:
                self._exports.remove(export)
                for engine in export.engines:
                    engine.close()

    def _engines(self, table: Table, device: str) -> Sequence[Engine]:
        engines: list[Engine] = []
        refusal: TransportError | None = None
        for route in self._routes:
            began = time.monotonic()
            try:
                engine = self._opened(route, device)
                try:
                    engine.register(table.regions(device))
                except TransportError:
                    engine.close()
                    raise
            except TransportError as error:
                refusal = error
                _log.warning("transfer engine: %s memory is not offered over %s: %s", device, route, error)
                continue
            engines.append(engine)
            nbytes = sum(place.length for place in table.places)
            taken = (time.monotonic() - began) * 1e3
            _log.info("transfer engine: %d bytes of %s offered over %s in %.1f ms", nbytes, device, route, taken)
        if not engines:
            raise refusal or TransportError(f"no route can offer {device} memory", reason="unsupported")
        return engines
