"""Pairs over Gloo, for memory of the host: what lets two processes without a GPU run the same conversation.

Decides nothing but how a pair is made of torch's Gloo on a private store: a file below the
machine's directory for temporary files, so both sides are on one machine. For tests: every message
is copied twice, so that Gloo never holds memory that was lent.

Gloo's own waits block, so they are in a thread of the pair. It ends an operation only by letting it
time out, which closes the connection; ``abort`` does just that.
"""

from __future__ import annotations

import ctypes
import os
import queue
import secrets
import tempfile
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final, Protocol, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from coldstart.errors import TransportError
from coldstart_nccl.communicator import SENDER, Message

_PREFIX: Final = "coldstart-gloo-"
_SET_UP: Final = timedelta(seconds=10)
_FOREVER: Final = timedelta(days=1)
"""Whether anything moves is for the conversation to see."""
_AT_ONCE: Final = timedelta(milliseconds=1)


class _Work(Protocol):
    def wait(self, timeout: timedelta = ...) -> bool: ...


class _Group(Protocol):
    def send(self, tensors: list[torch.Tensor], to: int, tag: int, /) -> _Work: ...

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int, /) -> _Work: ...


class _Options(Protocol):
    _devices: list[object]
    _timeout: timedelta


class _Gloo(Protocol):
    """``torch.distributed.ProcessGroupGloo``, as far as torch's annotations leave it out."""

    def __call__(self, store: FileStore, rank: int, size: int, options: _Options, /) -> _Group: ...

    def _Options(self) -> _Options: ...

    def create_device(self, *, hostname: str) -> object: ...


_gloo: Final = cast(_Gloo, dist.ProcessGroupGloo)


class GlooBackend:
    """See ``communicator.Backend``."""

    name: Final = "gloo"
    kind: Final = "cpu"

    def message_bytes(self, scattered: bool) -> int:
        return 4 * 1024 * 1024

    def warm(self, device: str) -> None:
        pass

    def settle(self, device: str) -> None:
        pass

    def invitation(self) -> bytes:
        return (_PREFIX + secrets.token_hex(16)).encode()

    def connect(self, rank: int, invitation: bytes, device: str, *, largest: int, ctas: int) -> GlooPair:
        name = invitation.decode("ascii", "replace")
        if not name.startswith(_PREFIX) or os.path.basename(name) != name:
            raise TransportError("the source's invitation is not one of Gloo's", reason="protocol")
        return GlooPair(rank, Path(tempfile.gettempdir(), name))


class GlooPair:
    """See ``communicator.Communicator``."""

    def __init__(self, rank: int, store: Path) -> None:
        self._rank, self._store = rank, store
        self._lock = threading.Lock()
        self._todo: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._error: Exception | None = None
        self._connected = self._aborted = False
        self._done = 0
        self._work: _Work | None = None
        self._thread = threading.Thread(target=self._run, name="coldstart-gloo-pair", daemon=True)
        self._thread.start()

    def ready(self) -> bool:
        self._check()
        return self._connected

    def send(self, message: Message) -> None:
        self._todo.put(message)

    def receive(self, message: Message) -> None:
        self._todo.put(message)

    def done(self) -> int:
        self._check()
        return self._done

    def abort(self) -> None:
        """Waits for a copy that goes on at this moment, and for nothing else."""
        with self._lock:
            self._aborted = True
            work = self._work
        self._todo.put(None)
        if work is not None:
            with suppress(RuntimeError):
                work.wait(_AT_ONCE)
        self._store.unlink(missing_ok=True)

    def close(self) -> None:
        self._todo.put(None)
        self._thread.join()
        self._store.unlink(missing_ok=True)

    def _check(self) -> None:
        if self._error is not None:
            words = str(self._error).splitlines()[0][:200]
            raise TransportError(f"gloo failed: {words}", reason="closed") from self._error

    # ------------------------------------------------------------------------ the pair's own thread

    def _run(self) -> None:
        try:
            group = self._group()
            self._connected = True
            number = 0
            while (message := self._todo.get()) is not None:
                self._move(group, message, number)
                number += 1
        except Exception as error:
            self._error = error

    def _group(self) -> _Group:
        store = FileStore(str(self._store), 2)
        store.set_timeout(_SET_UP)
        options = _gloo._Options()
        options._devices = [_gloo.create_device(hostname="127.0.0.1")]
        options._timeout = _SET_UP  # also for a peer that has gone between the store and the pair
        return _gloo(store, self._rank, 2, options)

    def _move(self, group: _Group, message: Message, number: int) -> None:
        staging = torch.zeros(message.span.length, dtype=torch.uint8)
        if self._rank == SENDER:
            self._copy(message, staging)
            work = group.send([staging], 1, number)
        else:
            work = group.recv([staging], 0, number)
        with self._lock:
            if self._aborted:
                return
            self._work = work
        work.wait(_FOREVER)
        self._work = None
        if self._rank != SENDER:
            self._copy(message, staging)
        self._done = number + 1

    def _copy(self, message: Message, staging: torch.Tensor) -> None:
        """Between lent memory and ours, under the lock: not once the pair has been aborted."""
        with self._lock:
            if self._aborted:
                raise InterruptedError("aborted")
            for part in message.parts:
                memory = (ctypes.c_ubyte * part.length).from_address(part.block.address + part.within)
                lent, own = torch.frombuffer(memory, dtype=torch.uint8), staging[part.at : part.at + part.length]
                if self._rank == SENDER:
                    own.copy_(lent)
                else:
                    lent.copy_(own)
