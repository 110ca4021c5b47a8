"""The transport: how the blocking halves meet the event loop.

Decides which of a source's engines a joiner reads from, and which connection serves a pull: one that was made
for its ticket before, or one of its own. Threads do all that blocks. What callers wait for is in ``awaited.py``, how a
pull goes in ``connection.py`` and ``joiner.py``, who may read in ``lender.py``.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final, TypeVar

from anyio import CancelScope, CapacityLimiter, to_thread

from coldstart.errors import TransportError
from coldstart.layout import Span
from coldstart.ports import Grant, Landed, Link, Memory, Traits, TransportSettings
from coldstart_transfer_engine import line
from coldstart_transfer_engine.awaited import Awaited
from coldstart_transfer_engine.connection import Connection
from coldstart_transfer_engine.exports import Export, Exports, table_of
from coldstart_transfer_engine.joiner import Pull
from coldstart_transfer_engine.lender import Lender
from coldstart_transfer_engine.library import Engine, Route
from coldstart_transfer_engine.line import NAME, Ticket, Way, decode_ticket

QUIET_SECONDS: Final = 10.0
"""How long revoke and close wait for readers to end."""
_ANSWER_SECONDS: Final = 3.0

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class TransferEngineTransport:
    """Both sides; see ``ports.Transport``, ``ports.Preparing``, ``ports.Connecting`` and ``ports.Routing``.

    Args:
        host: the IPv4 address that peers reach this worker at.
        routes: what can reach this worker's memory, best first; never empty.
    """

    name: Final = NAME

    def __init__(self, settings: TransportSettings, host: str, routes: Sequence[Route]) -> None:
        self._settings, self._host, self._routes = settings, host, routes
        self._exports = Exports(routes, self._open)
        self._lender = Lender(settings, host, self._exports)
        self._lock = threading.Lock()
        self._prepared: Export | None = None
        self._spare: Engine | None = None
        self._made: dict[bytes, Awaited] = {}
        """Made beforehand, by ticket."""
        self._connections: set[Connection] = set()
        self._route = ""
        self._closed = False
        kind = settings.device.partition(":")[0]
        link: Link = "tcp" if kind == "cpu" else "nvlink" if routes[0] == "nvlink" else "rdma"
        self.traits: Final = Traits(
            one_sided=True, needs_peer=True, abortable=True, device_kinds=(kind,), link=link
        )

    @property
    def route(self) -> str:
        """What the last pull's bytes came over; empty before the first ones."""
        return self._route

    # ---------------------------------------------------------------------------------- before

    async def prepare(self, memory: Memory) -> None:
        """Start the engines that the first pull and the first offer will need, and register ``memory`` with them."""
        await _in_thread(lambda: self._prepare(memory))

    def _prepare(self, memory: Memory) -> None:
        began = time.monotonic()
        export = self._exports.hold(memory)
        try:
            spare = self._open(self._routes[0], memory.device)
            with ExitStack() as undo:
                undo.callback(spare.close)
                if spare.route != "tcp":
                    spare.register(table_of(memory).regions(memory.device))
                self._keep(export, spare)
                undo.pop_all()
        except BaseException:
            self._exports.release(export)
            raise
        _log.info("transfer engine: prepared in %.1f ms", (time.monotonic() - began) * 1e3)

    def _keep(self, export: Export, spare: Engine) -> None:
        with self._lock:
            self._check_open()
            old_export, self._prepared = self._prepared, export
            old_spare, self._spare = self._spare, spare
        if old_export is not None:
            self._exports.release(old_export)
        if old_spare is not None:
            old_spare.close()

    # ---------------------------------------------------------------------------------- source

    async def offer(self, grant: Grant, memory: Memory) -> bytes:
        """Admit the holder of the ticket until the grant ends."""
        self._check_open()
        ticket = await _in_thread(lambda: self._lender.lend(grant, memory))
        return ticket.encode()

    async def revoke(self, transfer: str) -> None:
        """End the grant and wait until nobody reads under it.

        Raises:
            TransportError: a joiner has not ended; it has stopped, or hangs in a read.
        """
        with CancelScope(shield=True):
            quiet = await _in_thread(lambda: self._lender.end(transfer, QUIET_SECONDS))
        if not quiet:
            raise TransportError(
                f"a joiner still reads memory for transfer {transfer} {QUIET_SECONDS:g} s after it was revoked",
                reason="timeout",
            )

    def reading(self, transfer: str) -> bool:
        """Whether a joiner has a line for the grant."""
        return self._lender.reading(transfer)

    # ---------------------------------------------------------------------------------- joiner

    async def connect(self, ticket: bytes, into: Memory) -> None:
        """Reach the source and map its memory; see ``ports.Connecting.connect``."""
        self._check_open()
        decoded = decode_ticket(ticket)
        way = self._way(decoded, into.device)
        known = self._made.get(ticket)
        if known is not None and known.connection.suits(into):
            return
        await self.disconnect(ticket)
        awaited = self._begun(decoded, way, into)
        await awaited.made()
        if not awaited.connection.made:
            raise awaited.connection.error or _closed()
        self._made[ticket] = awaited

    async def disconnect(self, ticket: bytes) -> None:
        """See ``ports.Connecting.disconnect``; the engine itself ends a little later."""
        awaited = self._made.pop(ticket, None)
        if awaited is not None:
            await awaited.end()

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        """Read ``spans``; see ``ports.Transport.pull``."""
        self._check_open()
        decoded = decode_ticket(ticket)
        way = self._way(decoded, into.device)
        if not spans:
            return
        awaited = self._made.get(ticket)
        kept = awaited is not None and awaited.connection.suits(into)
        if awaited is None or not kept:
            awaited = self._begun(decoded, way, into)
        connection, still = awaited.connection, self._settings.io_seconds
        pull = Pull(way.session, spans, into, landed, still_seconds=still, cut=connection.cut)
        connection.add(pull)
        try:
            await awaited.pulled(pull)
        finally:
            self._route = pull.route or self._route
        if not pull.done:
            raise connection.error or _closed()
        if not kept:
            await awaited.end()

    def _begun(self, ticket: Ticket, way: Way, into: Memory) -> Awaited:
        def make(told: Callable[[], None]) -> Connection:
            return Connection(
                ticket,
                way,
                into,
                opened=self._ready,
                answer_seconds=min(self._settings.io_seconds, _ANSWER_SECONDS),
                still_seconds=self._settings.io_seconds,
                told=told,
                signer=self._settings.signer,
            )

        self._connections = {each for each in self._connections if not each.ended}
        awaited = Awaited(make)
        self._connections.add(awaited.connection)
        return awaited

    def _way(self, ticket: Ticket, device: str) -> Way:
        """The best engine of the source that we can read from."""
        for route in self._routes:
            for way in ticket.ways:
                if way.route == route and (route != "nvlink" or _neighbour(ticket)):
                    return way
        theirs = ", ".join(way.route for way in ticket.ways)
        raise TransportError(
            f"the source at {ticket.host} lends over {theirs}, which does not reach {device} memory here",
            reason="unsupported",
            advice="nvlink is between processes of one machine",
        )

    def _ready(self, route: Route, device: str) -> Engine:
        """The engine that was prepared, or a new one."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            if spare.route == route:
                return spare
            spare.close()
        return self._open(route, device)

    def _open(self, route: Route, device: str) -> Engine:
        return Engine(self._host, route, device)

    # ------------------------------------------------------------------------------------- end

    async def aclose(self) -> None:
        """End all connections and all grants, then the engines."""
        self._closed = True
        connections = list(self._connections)
        for connection in connections:
            connection.stop(_closed())
        self._made.clear()
        self._connections.clear()
        with CancelScope(shield=True):
            await _in_thread(lambda: self._close(connections))

    def _close(self, connections: Sequence[Connection]) -> None:
        deadline = time.monotonic() + QUIET_SECONDS
        for connection in connections:
            if not connection.join(max(deadline - time.monotonic(), 0.0)):
                _log.error("transfer engine: a pull does not end; its memory and its engine are left to it")
        self._lender.close(QUIET_SECONDS)
        with self._lock:
            prepared, self._prepared = self._prepared, None
            spare, self._spare = self._spare, None
        if prepared is not None:
            self._exports.release(prepared)
        if spare is not None:
            spare.close()

    def _check_open(self) -> None:
        if self._closed:
            raise _closed()


async def _in_thread(call: Callable[[], _T]) -> _T:
    return await to_thread.run_sync(call, limiter=CapacityLimiter(1))


def _neighbour(ticket: Ticket) -> bool:
    """Whether it is from another process of this machine: a process cannot map its own memory."""
    return bool(ticket.machine) and ticket.machine == line.machine() and ticket.process != os.getpid()


def _closed() -> TransportError:
    return TransportError("transfer engine transport is closed", reason="closed")
