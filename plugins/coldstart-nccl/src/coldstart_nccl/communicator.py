"""What the transport needs of a collective library: two ranks, messages, and a way out.

Decides the interface between the conversation (``conduct.py``) and those who move bytes
(``nccl.py``, ``gloo.py``). Rank 0 sends, rank 1 receives, and both are told of the same messages
in the same order. It must not know sockets, grants or the event loop.

A communicator belongs to one thread, which makes every call. None of them waits for the peer: a
peer that was killed or stopped is not noticed here, but by the one who polls.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from coldstart.layout import Span

SENDER, RECEIVER = 0, 1


class Block(msgspec.Struct, frozen=True):
    """Contiguous memory of a device (``cpu``, ``cuda:N``): address and length in bytes."""

    device: str
    address: int
    length: int


class Part(msgspec.Struct, frozen=True):
    """``length`` bytes of a message that begin ``at`` bytes into it, and ``within`` bytes into ``block``."""

    block: Block
    within: int
    length: int
    at: int


class Message(msgspec.Struct, frozen=True):
    """A range of the stream that travels in one piece, and where its bytes are on this side.

    Bytes that no part holds are padding: they travel, and are worth nothing.
    """

    span: Span
    parts: tuple[Part, ...]

    @property
    def whole(self) -> Part | None:
        """The part that is all of the message, if there is one: then nothing need be packed."""
        if len(self.parts) == 1 and self.parts[0].length == self.span.length:
            return self.parts[0]
        return None


class Communicator(Protocol):
    """One side of a pair. Every method may raise TransportError; then only ``abort`` may follow."""

    def ready(self) -> bool:
        """Whether set-up and the last message that was posted are so far that another one may be posted."""
        ...

    def send(self, message: Message) -> None:
        """Post a message; only when ``ready``. Its memory is read until ``done`` counts it."""
        ...

    def receive(self, message: Message) -> None:
        """Post room for a message; only when ``ready``. Its memory is written until ``done`` counts it."""
        ...

    def done(self) -> int:
        """How many messages, from the first on, have been moved completely."""
        ...

    def abort(self) -> None:
        """End now, whatever the peer does; when it returns, memory is neither read nor written any more."""
        ...

    def close(self) -> None:
        """Release everything after the last message. Both sides do it; it may take a second."""
        ...


class Backend(Protocol):
    """A collective library. Its methods block and are for threads."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str:
        """The kind of memory that it moves: ``cpu`` or ``cuda``."""
        ...

    def message_bytes(self, scattered: bool) -> int:
        """The size of a message that suits a source, whose memory is in many pieces or in one."""
        ...

    def warm(self, device: str) -> None:
        """Do what is slow the first time in a process."""
        ...

    def settle(self, device: str) -> None:
        """Wait until what was queued on the default stream of ``device`` before this call has been done."""
        ...

    def invitation(self) -> bytes:
        """What the receiver needs to find the sender, at most 1 KiB; for one pair."""
        ...

    def connect(self, rank: int, invitation: bytes, device: str, *, largest: int, ctas: int) -> Communicator:
        """One side of a pair, whose set-up goes on in the background until it is ``ready``.

        Args:
            largest: bytes of the largest message to come.
            ctas: cap on thread blocks used for communication, the same on both sides; 0 for none.
        """
        ...
