"""Both sides as coldstart sees them: where threads meet the event loop.

Decides that a cancelled pull returns when its target is quiet, and that a library which hangs is
left behind: then this transport says that it is not abortable any more, so that the target is
quarantined. It must not know any library (``communicator.py``) nor how bytes move (``conduct.py``).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import anyio
import msgspec
from anyio import CancelScope, CapacityLimiter, to_thread

from coldstart.errors import TransportError
from coldstart.layout import Span
from coldstart.ports import Grant, Landed, Memory, Traits, TransportSettings
from coldstart_nccl import hush, wire
from coldstart_nccl.communicator import Backend
from coldstart_nccl.joiner import Pull
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
        self._pulls: set[Pull] = set()
        self._threads: set[threading.Thread] = set()
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

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        """Fetch ``spans``; see ``ports.Transport.pull``.

        Where the library hangs after a failure, it does not return until it is cancelled.
        """
        if self._closed:
            raise closed(self.name)
        self._check_kind(into)
        address = wire.decode_ticket(ticket)
        if not any(span.length for span in spans):
            return
        loop = asyncio.get_running_loop()
        quiet, over = anyio.Event(), anyio.Event()

        def news() -> None:
            if pull.hush.quiet:
                quiet.set()
            over.set()

        def changed() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(news)

        pull = Pull(
            self._backend, address, spans, into, landed, io_seconds=self._settings.io_seconds, changed=changed
        )
        self._threads = {thread for thread in self._threads if thread.is_alive()} | {pull.thread}
        self._pulls.add(pull)
        try:
            pull.thread.start()
            await _until(pull, quiet, over)
        finally:
            self._pulls.discard(pull)
        if pull.error is not None:
            raise pull.error

    async def aclose(self) -> None:
        """End all pulls and grants, and wait for their threads, but not for one that hangs."""
        self._closed = True
        for pull in self._pulls:
            pull.stop(TransportError(f"{self.name} transport was closed during the pull", reason="closed"))
        with CancelScope(shield=True):
            await to_thread.run_sync(self._lender.close, CLOSE_SECONDS, limiter=CapacityLimiter(1))
            with anyio.move_on_after(CLOSE_SECONDS):
                while any(thread.is_alive() for thread in self._threads):  # noqa: ASYNC110 - they are threads
                    await anyio.sleep(0.005)

    def _check_kind(self, memory: Memory) -> None:
        if memory.device.partition(":")[0] != self._backend.kind:
            raise TransportError(f"{self.name} does not move {memory.device} memory", reason="unsupported")


async def _until(pull: Pull, quiet: anyio.Event, over: anyio.Event) -> None:
    """Wait until the pull's target is quiet; when cancelled, end it, and wait for that or for its hanging."""
    try:
        await quiet.wait()
    except BaseException:
        pull.stop(TransportError("the pull was cancelled", reason="cancelled"))
        waiting = True
        while waiting:
            with CancelScope(shield=True), suppress(asyncio.CancelledError):  # asyncio may cancel any number of times
                await over.wait()
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
            self._backend.warm(self._device)
        except Exception as error:  # whoever needs the library will hear of it
            self._error = error
