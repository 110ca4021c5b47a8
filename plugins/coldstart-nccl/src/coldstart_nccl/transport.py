"""Both sides as coldstart sees them: where threads meet the event loop.

Decides which connection serves a pull (one that was made for its ticket before, or one of its own), that a cancelled
pull returns when its target is quiet, and that a library which hangs is left behind: then this transport says that
it is not abortable any more, so that the target is quarantined. It must not know any library (``communicator.py``)
nor how bytes move (``conduct.py``).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import anyio
import msgspec
from anyio import CancelScope, CapacityLimiter, to_thread

from coldstart.driver import apart_from_captures
from coldstart.errors import TransportError
from coldstart.layout import Span
from coldstart.ports import Grant, Landed, Memory, Traits, TransportSettings
from coldstart_nccl import hush, wire
from coldstart_nccl.communicator import Backend
from coldstart_nccl.connection import Connection, Pull
from coldstart_nccl.lender import Lender, closed

CLOSE_SECONDS: Final = 5.0
"""How long ``aclose`` waits for threads that were told to end."""
_WARM_SECONDS: Final = 60.0


class CollectiveTransport:
    """A transport over pairs of a collective library; see ``ports.Transport``.

    Args:
        traits: what it is like as long as the library does not hang.
        ctas: cap on thread blocks for communication, 0 to choose by the settings.
    """

    def __init__(self, backend: Backend, traits: Traits, settings: TransportSettings, ctas: int = 0) -> None:
        self._backend, self._traits, self._settings = backend, traits, settings
        self._lender = Lender(backend, settings, ctas)
        self._made: dict[bytes, Connection] = {}
        """Beforehand, by ticket."""
        self._connections: set[Connection] = set()
        self._closed = False
        self._warmth = _Warmth(backend, settings.device)

    @property
    def name(self) -> str:
        return self._backend.name

    @property
    def traits(self) -> Traits:
        if hush.spoilt(self._backend.kind):
            return msgspec.structs.replace(self._traits, abortable=False)
        return self._traits

    @property
    def route(self) -> str:
        """The library: which of the links it knows carried the bytes, it does not tell."""
        return self._backend.name

    async def prepare(self, memory: Memory) -> None:
        """Wait until the library has been loaded and used once, which began when the transport was opened."""
        await to_thread.run_sync(self._warmth.wait, abandon_on_cancel=True, limiter=CapacityLimiter(1))

    async def offer(self, grant: Grant, memory: Memory) -> bytes:
        """Listen (from the first offer on) and admit the holder of the ticket until the grant ends."""
        self._check_kind(memory)
        ticket = await to_thread.run_sync(self._lender.lend, grant, memory, limiter=CapacityLimiter(1))
        return ticket.encode()

    async def revoke(self, transfer: str) -> None:
        """End the grant's conversations and wait until nothing reads memory for it."""
        if self._lender.end(transfer):
            return
        with CancelScope(shield=True):
            seconds = hush.HANG_SECONDS
            quiet = await to_thread.run_sync(self._lender.wait_quiet, transfer, seconds, limiter=CapacityLimiter(1))
        if not quiet:
            raise TransportError(
                f"{self.name} still reads memory for transfer {transfer} {seconds:g} s after it was revoked",
                reason="timeout",
            )

    def reading(self, transfer: str) -> bool:
        """Whether a joiner is connected for the grant."""
        return self._lender.reading(transfer)

    @property
    def sent(self) -> int:
        """See ``ports.Counting``."""
        return self._lender.sent

    async def connect(self, ticket: bytes, into: Memory) -> None:
        """Build a pair with the source; see ``ports.Connecting.connect``.

        A pair that is given up is taken down in the background.
        """
        address = self._address(ticket, into)
        known = self._made.get(ticket)
        if known is not None and known.suits(into):
            return
        await self.disconnect(ticket)
        news = _News()
        connection = self._begun(address, into, news.told)
        try:
            await news.until(lambda: connection.made or connection.over)
        except BaseException:
            connection.stop(TransportError("the connection was given up", reason="cancelled"))
            raise
        if not connection.made:
            raise connection.error or closed(self.name)
        self._made[ticket] = connection

    async def disconnect(self, ticket: bytes) -> None:
        """See ``ports.Connecting.disconnect``; the pair is taken down in the background."""
        connection = self._made.pop(ticket, None)
        if connection is not None:
            connection.end()

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        """Fetch ``spans``; see ``ports.Transport.pull``.

        Where the library hangs after a failure, it does not return until it is cancelled.
        """
        address = self._address(ticket, into)
        if not any(span.length for span in spans):
            return
        news = _News()
        pull = Pull(spans, into.device, landed, news.told)
        connection = self._made.get(ticket)
        if connection is None or not connection.suits(into):
            connection = self._begun(address, into, lambda: None)
            connection.add(pull)
            connection.end()
        else:
            connection.add(pull)
        await _until(pull, connection, news)
        if not pull.done:
            raise connection.error or closed(self.name)

    def _address(self, ticket: bytes, into: Memory) -> wire.Ticket:
        if self._closed:
            raise closed(self.name)
        self._check_kind(into)
        return wire.decode_ticket(ticket)

    def _begun(self, address: wire.Ticket, into: Memory, changed: Callable[[], None]) -> Connection:
        connection = Connection(
            self._backend,
            address,
            into,
            io_seconds=self._settings.io_seconds,
            changed=changed,
            signer=self._settings.signer,
        )
        self._connections = {each for each in self._connections if each.thread.is_alive()} | {connection}
        connection.thread.start()
        return connection

    async def aclose(self) -> None:
        """End all connections and grants, and wait for their threads, but not for one that hangs."""
        self._closed = True
        for connection in self._connections:
            connection.stop(TransportError(f"{self.name} transport was closed during the pull", reason="closed"))
        with CancelScope(shield=True):
            await to_thread.run_sync(self._lender.close, CLOSE_SECONDS, limiter=CapacityLimiter(1))
            with anyio.move_on_after(CLOSE_SECONDS):
                while any(each.thread.is_alive() for each in self._connections):  # noqa: ASYNC110 - they are threads
                    await anyio.sleep(0.005)

    def _check_kind(self, memory: Memory) -> None:
        if memory.device.partition(":")[0] != self._backend.kind:
            raise TransportError(f"{self.name} does not move {memory.device} memory", reason="unsupported")


class _News:
    """That something has changed, from any thread to the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = anyio.Event()

    def told(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._renew)

    def _renew(self) -> None:
        self._event.set()
        self._event = anyio.Event()

    async def until(self, happened: Callable[[], bool]) -> None:
        while not happened():
            await self._event.wait()


async def _until(pull: Pull, connection: Connection, news: _News) -> None:
    """Wait until the pull's target is quiet; when cancelled, end it, and wait for that or for its hanging."""
    try:
        await news.until(lambda: pull.hush.quiet)
    except BaseException:
        connection.stop(TransportError("the pull was cancelled", reason="cancelled"))
        waiting = True
        while waiting:
            with CancelScope(shield=True), suppress(asyncio.CancelledError):  # asyncio may cancel any number of times
                await news.until(lambda: pull.hush.quiet or pull.hush.hung)
                waiting = False
        raise


class _Warmth:
    """The library's first use, in a thread of its own from the beginning."""

    def __init__(self, backend: Backend, device: str) -> None:
        self._backend, self._device = backend, device
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"coldstart-{backend.name}-warm", daemon=True)
        if device.partition(":")[0] == backend.kind:
            self._thread.start()

    def wait(self) -> None:
        """Raises what went wrong."""
        if self._thread.ident is not None:
            self._thread.join(_WARM_SECONDS)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with apart_from_captures(self._device):
                self._backend.warm(self._device)
        except Exception as error:  # whoever needs the library will hear of it
            self._error = error
