"""The tcp transport: plain sockets, on every machine, for memory of every kind.

Decides how the blocking halves meet the event loop: ``tcp_source.py`` has threads of its own, and
``tcp_joiner.py`` runs in anyio's worker threads under a limiter of its own, so that the loop never
waits and nobody else's threads are taken. Cancelling a pull shuts its sockets and returns when
its threads have: nothing writes after that. It must not know what is pulled or why (``plan.py``).

Unencrypted, authenticated by a random secret in the ticket and, where the fleet has keys, by a proof of both
sides (``proofs.py``); meant for the cluster's own network.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

from anyio import CancelScope, CapacityLimiter, to_thread

from coldstart.errors import ConfigError, TransportError
from coldstart.layout import Span
from coldstart.ports import API, Availability, Grant, Landed, Memory, Traits, TransportSettings
from coldstart.transports import wire
from coldstart.transports.tcp_joiner import Pull
from coldstart.transports.tcp_kept import Kept
from coldstart.transports.tcp_source import HOST_ADVICE, Lender, bound
from coldstart.transports.threads import run_in_threads

TRAITS: Final = Traits(
    one_sided=False, needs_peer=True, abortable=True, device_kinds=("cpu", "cuda"), link="tcp", sees_readers=True
)
_QUIET_SECONDS: Final = 10.0
"""How long revoke and close wait for threads that were told to stop."""


class TcpTransport:
    """Both sides of tcp; see ``ports.Transport``, ``ports.Growing``, ``ports.Keeping`` and ``ports.Counting``."""

    name: Final = "tcp"
    traits: Final = TRAITS

    def __init__(self, settings: TransportSettings) -> None:
        self._settings = settings
        self._lender = Lender(settings)
        self._pulls: set[Pull] = set()
        self._kept = Kept()
        self._closed = False

    async def offer(self, grant: Grant, memory: Memory) -> bytes:
        """Listen (from the first offer on) and admit the holder of the ticket until the grant ends."""
        ticket = await to_thread.run_sync(self._lender.lend, grant, memory, limiter=CapacityLimiter(1))
        return ticket.encode()

    async def revoke(self, transfer: str) -> None:
        """Shut the grant's sockets and wait until nothing reads memory for it."""
        if self._lender.end(transfer):
            return
        with CancelScope(shield=True):
            quiet = await to_thread.run_sync(
                self._lender.wait_quiet, transfer, _QUIET_SECONDS, limiter=CapacityLimiter(1)
            )
        if not quiet:
            raise TransportError(
                f"tcp still reads memory for transfer {transfer} {_QUIET_SECONDS:g} s after it was revoked",
                reason="timeout",
            )

    def reading(self, transfer: str) -> bool:
        """Whether a joiner is connected for the grant."""
        return self._lender.reading(transfer)

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        """Fetch ``spans``; see ``ports.Transport.pull``. Failure of one connection ends them all."""
        if self._closed:
            raise TransportError("tcp transport is closed", reason="closed")
        pull = Pull(
            wire.decode_ticket(ticket),
            spans,
            into,
            landed,
            io_seconds=self._settings.io_seconds,
            kept=self._kept,
            signer=self._settings.signer,
            connections=self._settings.connections,
        )
        self._pulls.add(pull)
        try:
            await run_in_threads(pull.connections, pull.run, pull.stop)
        finally:
            self._pulls.discard(pull)
        if pull.error is not None:
            raise pull.error

    @property
    def sent(self) -> int:
        """See ``ports.Counting``."""
        return self._lender.sent

    def extend(self, ticket: bytes, spans: Sequence[Span]) -> bool:
        """See ``ports.Growing.extend``."""
        wanted = wire.decode_ticket(ticket)
        return any(pull.ticket == wanted and pull.extend(spans) for pull in self._pulls)

    def keep(self, ticket: bytes) -> None:
        """See ``ports.Keeping.keep``."""
        if not self._closed:
            self._kept.keep(wire.decode_ticket(ticket))

    async def disconnect(self, ticket: bytes) -> None:
        """See ``ports.Keeping.disconnect``."""
        self._kept.drop(wire.decode_ticket(ticket))

    async def aclose(self) -> None:
        """End all pulls and grants, and wait for their threads."""
        self._closed = True
        for pull in self._pulls:
            pull.stop(TransportError("tcp transport was closed during the pull", reason="closed"))
        self._kept.close()
        with CancelScope(shield=True):
            await to_thread.run_sync(self._lender.close, _QUIET_SECONDS, limiter=CapacityLimiter(1))


class TcpFactory:
    """Opens :class:`TcpTransport`; the entry point ``tcp``."""

    api: int = API

    def probe(self) -> Availability:
        return Availability(usable=True, reason="sockets of the operating system")

    def open(self, settings: TransportSettings) -> TcpTransport:
        """Nothing listens before the first offer, but whether it could is tried here.

        Blocks while the host's name is looked up: call it in a thread.

        Raises:
            ConfigError: the host is no address of this machine, or none that peers can use.
        """
        try:
            with bound(settings.host) as sock:
                address = ipaddress.ip_address(sock.getsockname()[0])
        except OSError as error:
            raise ConfigError(
                f"tcp cannot listen on {settings.host!r}: {error.strerror or error}", advice=HOST_ADVICE
            ) from error
        if address.is_unspecified or address.is_multicast:
            raise ConfigError(f"tcp cannot offer {settings.host!r} to peers", advice=HOST_ADVICE)
        return TcpTransport(settings)


FACTORY: Final = TcpFactory()
