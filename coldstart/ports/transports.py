"""Transports: what moves bytes from a source's memory into a joiner's, and what one may offer besides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, runtime_checkable

import msgspec

from coldstart.layout import Span
from coldstart.ports.memory import Memory
from coldstart.ports.signing import Signer

Link = Literal["nvlink", "rdma", "tcp", "storage", "memory"]


class Traits(msgspec.Struct, frozen=True):
    """What a transport is like; the runner asks these, never the class.

    Args:
        one_sided: the source's process does no work per byte.
        needs_peer: bytes come from another worker (false for storage).
        abortable: when a cancelled ``pull`` returns, nothing writes into the target any more.
            If false, the target of an abandoned pull is quarantined.
        sees_readers: :meth:`Transport.reading` can tell; then a joiner that it does not see is gone.
        device_kinds: kinds of memory it reads and writes, such as ``("cpu", "cuda")``.
        link: what carries the bytes.
    """

    one_sided: bool
    needs_peer: bool
    abortable: bool
    device_kinds: tuple[str, ...]
    link: Link
    sees_readers: bool = False


class Availability(msgspec.Struct, frozen=True):
    """Whether something can run here; ``reason`` says why not, or what was found."""

    usable: bool
    reason: str = ""


class Grant(msgspec.Struct, frozen=True):
    """The right of one joiner to pull from this source.

    ``transfer`` is the transfer's id, ``fence`` grows with every claim of the shard,
    ``seconds`` bounds the grant's life.
    """

    transfer: str
    joiner: str
    fence: int
    seconds: float


Landed = Callable[[Span], None]
"""Called by ``pull`` for each range that is complete in the target. Any thread, any order."""


@runtime_checkable
class Transport(Protocol):
    """Moves bytes from a source's memory into a joiner's.

    A transport is opened by its factory (:class:`TransportFactory`) and closed by ``aclose``.
    """

    @property
    def name(self) -> str: ...

    @property
    def traits(self) -> Traits: ...

    async def offer(self, grant: Grant, memory: Memory) -> bytes:
        """Source: open ``memory`` to the holder of ``grant``; the returned ticket says how.

        The ticket is opaque, at most 16 KiB, and worthless after ``revoke``. Raises
        TransportError when this transport cannot offer now.
        """
        ...

    async def revoke(self, transfer: str) -> None:
        """Source: end a grant at once and return when nothing reads for it; idempotent."""
        ...

    def reading(self, transfer: str) -> bool:
        """Source: whether a joiner is connected for this grant now; false where that cannot be told."""
        ...

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        """Joiner: fetch ``spans`` into ``into``; returns when all of them have landed.

        Landed ranges cover all of ``spans``, padding included.

        Cancelling it is how a stalled attempt ends; see :attr:`Traits.abortable`. Raises
        TransportError with a reason when the source ends, refuses or breaks the protocol. A pull
        that ends by itself, either way, is quiet: nothing writes into the target any more.
        """
        ...

    async def aclose(self) -> None:
        """Release sockets, threads and registrations; idempotent."""
        ...


class TransportSettings(msgspec.Struct, frozen=True):
    """What the operator decides about transports.

    Args:
        host: address that peers reach this worker at; also the one bound to.
        connections: parallel connections per pull.
        lend_bytes_per_second: cap on what this worker sends, 0 for none.
        io_seconds: a socket that moves nothing for so long is dead.
        device: where this worker's weights are, such as ``cpu`` or ``cuda:0``; what is slow the
            first time there may be begun when the transport is opened.
        signer: proves both sides to each other, where the fleet has keys; a transport that cannot use it says so
            in its documentation.
    """

    host: str = "127.0.0.1"
    connections: int = 2
    lend_bytes_per_second: float = 0.0
    io_seconds: float = 10.0
    device: str = "cpu"
    signer: Signer | None = None


@runtime_checkable
class Preparing(Protocol):
    """What a transport may offer beside :class:`Transport`: work that is better done before it is needed."""

    async def prepare(self, memory: Memory) -> None:
        """Register ``memory``, open what will be needed; called once, while a source is being sought.

        A hint: ``offer`` and ``pull`` do or await what is missing, also for memory that was
        replaced. What it raises is logged, and nothing else comes of it.
        """
        ...


@runtime_checkable
class Growing(Protocol):
    """What a transport may offer beside :class:`Transport`: a pull that is asked for more while it is under way.

    A joiner that receives while its source still receives asks for each chunk as soon as the source has it. Its
    link need not wait for the request, if that is there before the last byte of what was asked for earlier.
    """

    def extend(self, ticket: bytes, spans: Sequence[Span]) -> bool:
        """Joiner: the pull with ``ticket`` that is under way fetches ``spans``, too, behind the rest.

        Into the same memory, and told of in the same way; it returns when all has landed. False where there is no
        such pull any more: then nothing of ``spans`` is fetched. From the loop's own thread; never waits. Raises
        TransportError for a ticket that is none.
        """
        ...


@runtime_checkable
class Keeping(Protocol):
    """What a transport may offer beside :class:`Transport`: connections that outlive a pull.

    A joiner that receives while its source still receives pulls many times with one ticket.
    """

    def keep(self, ticket: bytes) -> None:
        """Joiner: what a pull with ``ticket`` has set up serves the next one, until :meth:`disconnect`.

        Raises TransportError for a ticket that is none.
        """
        ...

    async def disconnect(self, ticket: bytes) -> None:
        """Joiner: take down what was kept for ``ticket``, when no pull is under way; idempotent, soon back."""
        ...


@runtime_checkable
class Connecting(Protocol):
    """What a transport may offer beside :class:`Transport`: set-up that is done before the first byte is asked for.

    Worth it where set-up takes longer than a round trip; it is kept as :class:`Keeping` says.
    """

    async def connect(self, ticket: bytes, into: Memory) -> None:
        """Joiner: set up all that pulls with ``ticket`` into ``into`` need; not a byte of it is written.

        They use it until :meth:`disconnect`, a failure, or the end of the grant; a pull that finds nothing set up
        does it for itself, and takes it down. Cancelling ends it soon. Raises TransportError as ``pull`` does.
        """
        ...

    async def disconnect(self, ticket: bytes) -> None:
        """Joiner: take down what was set up for ``ticket``, when no pull is under way; idempotent, soon back."""
        ...


@runtime_checkable
class Routing(Protocol):
    """What a transport may offer beside :class:`Transport`: the truth about the path its bytes take."""

    @property
    def route(self) -> str:
        """What the last pull really ran over, as read back from the library (``nvlink``, ``rdma``, ``tcp``)."""
        ...


@runtime_checkable
class Counting(Protocol):
    """What a transport may offer beside :class:`Transport`: how much it has sent, where that can be known."""

    @property
    def sent(self) -> int:
        """Source: bytes of weights that have left this worker since the transport was opened."""
        ...


class TransportFactory(Protocol):
    """What an entry point in ``coldstart.transports`` loads to."""

    api: int

    def probe(self) -> Availability:
        """Cheap and without side effects: are library and hardware here?"""
        ...

    def open(self, settings: TransportSettings) -> Transport: ...
