"""Device memory by its address, and buckets for messages that lie in many pieces.

Decides how pieces are copied into a bucket before it is sent, and out of it after it was received:
all at once, on a stream of its own, two buckets in turn, so that one is packed while the other one
travels. It must not know NCCL; ``nccl.py`` says when a bucket has been posted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from coldstart_nccl import library
from coldstart_nccl.communicator import Block, Message, Part

# Typed here because torch leaves them untyped.
_external: Callable[[int, torch.device], torch.cuda.Stream] = torch.cuda.ExternalStream
new_event: Callable[[], torch.cuda.Event] = torch.cuda.Event
idle: Callable[[torch.cuda.Stream], bool] = torch.cuda.Stream.query
passed: Callable[[torch.cuda.Event], bool] = torch.cuda.Event.query

_WIDE: Final = 8
"""Pieces that start and end on multiples of this are copied in words of it, which is faster."""


class OwnStream:
    """A stream that is nobody else's.

    Those that torch makes are handed out again and again, so one of them could be the engine's, and
    its work would wait behind a message for which the other side never comes.
    """

    def __init__(self, device: torch.device, *, urgent: bool = False) -> None:
        index = device.index if device.index is not None else torch.cuda.current_device()
        self._held = library.new_stream(index, urgent=urgent)
        self.stream = _external(int(self._held.handle), device)

    def close(self) -> None:
        """Nothing may be queued on it any more."""
        self._held.close()


class _Described:
    """Memory as ``__cuda_array_interface__`` describes it."""

    def __init__(self, block: Block) -> None:
        self.__cuda_array_interface__ = {
            "shape": (block.length,),
            "typestr": "|u1",
            "data": (block.address, False),
            "strides": None,
            "version": 3,
            "stream": None,
        }


class Tensors:
    """Byte tensors over memory that somebody else owns; made once for each block."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._made: dict[Block, torch.Tensor] = {}

    def of(self, part: Part) -> torch.Tensor:
        """The bytes of ``part``."""
        block = part.block
        whole = self._made.get(block)
        if whole is None:
            whole = torch.as_tensor(_Described(block), device=self._device)
            self._made[block] = whole
        return whole[part.within : part.within + part.length]

    def clear(self) -> None:
        self._made.clear()


class Bucket:
    """One bucket while one message is in it."""

    def __init__(self, memory: torch.Tensor, free: torch.cuda.Event) -> None:
        self.memory = memory
        self._free = free

    def complete(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        """Sent: once the message has left, the bucket is free again."""
        self._free.record(stream)
        moved = new_event()
        moved.record(stream)
        return moved


class Room(Bucket):
    """A bucket that waits for a message, which is then taken out of it."""

    def __init__(
        self,
        memory: torch.Tensor,
        free: torch.cuda.Event,
        copies: torch.cuda.Stream,
        message: Message,
        tensors: Tensors,
    ) -> None:
        super().__init__(memory, free)
        self._copies, self._message, self._tensors = copies, message, tensors

    def complete(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        """Received: unpacked on the other stream, after which the bucket is free again."""
        arrived = new_event()
        arrived.record(stream)
        self._copies.wait_event(arrived)
        with torch.cuda.stream(self._copies):
            copy_parts(self._message, self.memory, self._tensors, outwards=True)
        return super().complete(self._copies)


class Buckets:
    """Two buckets of a device, used in turn; made when they are first needed.

    Args:
        largest: bytes of the largest message.
    """

    def __init__(self, device: torch.device, largest: int) -> None:
        self._device, self._largest = device, largest
        self._own = OwnStream(device)
        self.stream = self._own.stream
        """What is copied into and out of buckets is copied on this stream."""
        self._memory: list[torch.Tensor] = []
        self._free = [new_event(), new_event()]
        self._turn = 0

    def packed(self, message: Message, tensors: Tensors, stream: torch.cuda.Stream) -> Bucket:
        """A bucket that holds ``message`` by the time that ``stream`` comes to what is queued there next."""
        memory, free = self._next(message.span.length, stream)
        self.stream.wait_event(free)
        with torch.cuda.stream(self.stream):
            copy_parts(message, memory, tensors, outwards=False)
        full = new_event()
        full.record(self.stream)
        stream.wait_event(full)
        return Bucket(memory, free)

    def room(self, message: Message, tensors: Tensors, stream: torch.cuda.Stream) -> Bucket:
        """A bucket that is empty by the time that ``stream`` comes to what is queued there next."""
        memory, free = self._next(message.span.length, stream)
        stream.wait_event(free)
        return Room(memory, free, self.stream, message, tensors)

    def close(self) -> None:
        """Release memory and stream; nothing may be on its way any more."""
        self._memory.clear()
        self._own.close()

    def _next(self, length: int, stream: torch.cuda.Stream) -> tuple[torch.Tensor, torch.cuda.Event]:
        """The bucket whose turn it is, cut to ``length``, and the event after which it is free."""
        turn = self._turn
        self._turn = 1 - turn
        if turn == len(self._memory):
            self._memory.append(torch.empty(self._largest, dtype=torch.uint8, device=self._device))
            # From the pool of the current stream, whose earlier work may still use it. Memory allocated
            # for a stream of ours would stay in that stream's pool for ever.
            ours = new_event()
            ours.record(torch.cuda.current_stream(self._device))
            self.stream.wait_event(ours)
            stream.wait_event(ours)
        return self._memory[turn][:length], self._free[turn]


def copy_parts(message: Message, bucket: torch.Tensor, tensors: Tensors, *, outwards: bool) -> None:
    """Copy the parts of ``message`` into ``bucket``, or out of it, on the current stream."""
    wide: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
    narrow: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
    for part in message.parts:
        piece, place = tensors.of(part), bucket[part.at : part.at + part.length]
        to, source = (piece, place) if outwards else (place, piece)
        if any(number % _WIDE for number in (part.block.address, part.within, part.at, part.length)):
            narrow[0].append(to)
            narrow[1].append(source)
        else:
            wide[0].append(to.view(torch.int64))
            wide[1].append(source.view(torch.int64))
    for targets, sources in (wide, narrow):
        if targets:
            torch._foreach_copy_(targets, sources, non_blocking=True)
