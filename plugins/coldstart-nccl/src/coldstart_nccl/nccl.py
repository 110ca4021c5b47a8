"""Pairs over NCCL, for memory of CUDA devices, through nccl4py.

Decides how a pair lives: it is set up without blocking, every call is followed by polling until the
library has nothing in progress, a failure or a dead peer leads to ``abort`` and never to ``finalize``,
and only a pair that has moved everything is finalised. The engine's groups, torch's own NCCL and
NCCL's environment are left alone. How bytes get out of many pieces of memory is in ``cuda.py``.

A killed peer raises nothing here: its kernel's partner spins until the pair is aborted.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Final, Protocol

import torch

from coldstart.errors import TransportError
from coldstart_nccl import hush
from coldstart_nccl.communicator import RECEIVER, SENDER, Message
from coldstart_nccl.cuda import Buckets, OwnStream, Tensors, idle, new_event, passed
from coldstart_nccl.library import Library, Pair, load

_SUCCESS: Final = 0
_IN_PROGRESS: Final = 7
_CLOSE_SECONDS: Final = 5.0
_WARM_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.0005
_MIB: Final = 1024 * 1024
_GREETING: Final = 8


class NcclBackend:
    """See ``communicator.Backend``."""

    name: Final = "nccl"
    kind: Final = "cuda"

    def message_bytes(self, scattered: bool) -> int:
        """512 MiB where memory is sent as it is; 64 MiB where the source needs two buckets of this size.

        Between two H200s 16 GB came at 0.95 of one flat broadcast in messages of 256 MiB, at 0.96 in those of 512, and
        at 0.97 in those of 1,024, which a slow link would take too long for: only a message that has come is progress.
        """
        return 64 * _MIB if scattered else 512 * _MIB

    def warm(self, device: str) -> None:
        """Load the library and make its context: a pair's set-up takes 30 ms after this, and a second before."""
        hush.check(device)
        named = torch.device(device)
        torch.cuda.set_device(named if named.index is not None else torch.cuda.current_device())
        library = load()
        alone = library.Communicator()
        alone.initialize(1, 0, library.get_unique_id(), library.NCCLConfig(blocking=False, max_ctas=1))
        _settled(library, alone, _WARM_SECONDS)
        alone.abort()

    def settle(self, device: str) -> None:
        """On the default stream: the host may be capturing a graph on another one, which must not be waited for."""
        torch.cuda.default_stream(torch.device(device)).synchronize()

    def invitation(self) -> bytes:
        return bytes(load().get_unique_id())

    def connect(self, rank: int, invitation: bytes, device: str, *, largest: int, ctas: int) -> NcclPair:
        return NcclPair(load(), rank, invitation, torch.device(device), largest, ctas)


class NcclPair:
    """See ``communicator.Communicator``. The calling thread's device becomes ``device``."""

    def __init__(
        self, library: Library, rank: int, invitation: bytes, device: torch.device, largest: int, ctas: int
    ) -> None:
        torch.cuda.set_device(device)
        self._library = library
        self._peer = SENDER if rank == RECEIVER else RECEIVER
        self._device = device
        # A message's few thread blocks must not wait until all those of a digest have run. The source's are
        # not urgent: its own work comes first.
        self._own = OwnStream(device, urgent=rank == RECEIVER)
        self._stream = self._own.stream
        self._tensors = Tensors(device)
        self._buckets = Buckets(device, largest)
        self._greeting: torch.Tensor | None = None
        self._greeted: torch.cuda.Event | None = None
        self._open = False
        self._posted: Posted | None = None
        self._moving: deque[torch.cuda.Event] = deque()
        self._done = 0
        self._pair = library.Communicator()
        config = library.NCCLConfig(blocking=False, max_ctas=ctas or None)
        try:
            self._pair.initialize(2, rank, library.UniqueId.from_bytes(invitation), config)
        except Exception as error:
            raise _failed("cannot set up a pair", error) from error

    def ready(self) -> bool:
        """Also finishes what was posted last: until then nothing else may be queued on NCCL's stream."""
        if _in_progress(self._library, self._pair) or not self._connected():
            return False
        if self._posted is not None:
            self._moving.append(self._posted.complete(self._stream))
            self._posted = None
        return True

    def send(self, message: Message) -> None:
        """Straight from where it lies, if it lies in one piece; else by way of a bucket."""
        if message.whole is not None:
            memory, self._posted = self._tensors.of(message.whole), _Direct()
        else:
            packed = self._buckets.packed(message, self._tensors, self._stream)
            memory, self._posted = packed.memory, packed
        self._call(memory, sending=True)

    def receive(self, message: Message) -> None:
        """Straight to where it belongs, if that is in one piece; else by way of a bucket."""
        if message.whole is not None:
            memory, self._posted = self._tensors.of(message.whole), _Direct()
        else:
            room = self._buckets.room(message, self._tensors, self._stream)
            memory, self._posted = room.memory, room
        self._call(memory, sending=False)

    def done(self) -> int:
        while self._moving and passed(self._moving[0]):
            self._moving.popleft()
            self._done += 1
        return self._done

    def abort(self) -> None:
        """Returns when no kernel of this pair runs any more; a broken context runs none, and is not used again."""
        try:
            self._pair.abort()
            for stream in (self._stream, self._buckets.stream):
                while not idle(stream):
                    time.sleep(_POLL_SECONDS)
            self._let_go()
        except Exception:
            hush.spoil(str(self._device))

    def close(self) -> None:
        """Finalise and destroy, with a deadline: the peer may have died since."""
        try:
            self._pair.finalize()
            _settled(self._library, self._pair, _CLOSE_SECONDS)
            self._pair.destroy()
        except Exception:
            self.abort()
        else:
            self._let_go()

    def _connected(self) -> bool:
        """Whether a few bytes without meaning have been moved, and so everything is connected.

        The library connects two ranks when their first message is posted: 50 ms for 16 thread blocks (measured).
        """
        if self._greeting is None:
            self._greeting = torch.zeros(_GREETING, dtype=torch.uint8, device=self._device)
            self._call(self._greeting, sending=self._peer == RECEIVER)
            return False
        if self._greeted is None:
            self._greeted = new_event()
            self._greeted.record(self._stream)
        self._open = self._open or passed(self._greeted)
        return self._open

    def _call(self, memory: torch.Tensor, *, sending: bool) -> None:
        try:
            if sending:
                self._pair.send(memory, self._peer, stream=self._stream.cuda_stream)
            else:
                self._pair.recv(memory, self._peer, stream=self._stream.cuda_stream)
        except Exception as error:
            raise _failed("cannot post a message", error) from error

    def _let_go(self) -> None:
        self._moving.clear()
        self._posted = None
        self._greeted = None
        self._tensors.clear()
        self._buckets.close()
        self._own.close()


class Posted(Protocol):
    """A message that the library has been told of."""

    def complete(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        """Called once it is on ``stream``: the event after which the message has been moved."""
        ...


class _Direct:
    """A message that needs no bucket."""

    def complete(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        event = new_event()
        event.record(stream)
        return event


def _in_progress(library: Library, pair: Pair) -> bool:
    """Whether the library is still busy with the last call. Raises TransportError for every other state."""
    try:
        state = int(pair.get_async_error())
    except Exception as error:
        raise _failed("a pair is broken", error) from error
    if state not in (_SUCCESS, _IN_PROGRESS):
        raise TransportError(f"nccl: {library.get_error_string(state)}", reason="closed")
    return state == _IN_PROGRESS


def _settled(library: Library, pair: Pair, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while _in_progress(library, pair):
        if time.monotonic() > deadline:
            raise TransportError(f"nccl was busy for {seconds:g} s", reason="timeout")
        time.sleep(_POLL_SECONDS)


def _failed(what: str, error: Exception) -> TransportError:
    return TransportError(f"nccl: {what}: {' '.join(str(error).split())[:200]}", reason="closed")
