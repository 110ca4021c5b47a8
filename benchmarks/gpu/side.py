"""One process of a case: where it begins, what it is given, how it ends.

Decides that whatever a measurement does, its process says figures as soon as they are there, says why
it failed, leaves what it prints in a file, and ends with its parent. It must not know what is measured.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import msgspec
import torch

from benchmarks.gpu.words import Ended, Failed, Figure, Message, Order
from coldstart.layout import Layout

WARM: tuple[str, ...] = ("torch", "benchmarks.gpu.side", "benchmarks.gpu.pulls")
"""Imported once, in the process that all sides are forked from."""


class Unable(Exception):
    """This cannot be measured here; the text says why."""


class Peer:
    """The other side of the case. Blocks."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def say(self, message: bytes) -> None:
        self._connection.send_bytes(message)

    def hear(self) -> bytes:
        """Raises EOFError when the other side has ended."""
        return self._connection.recv_bytes()

    def meet(self) -> None:
        """Return when both sides have come here."""
        self.say(b"")
        self.hear()


class Task:
    """What a measurement works with."""

    def __init__(self, order: Order, peer: Peer, tell: Callable[[Message], None]) -> None:
        self.order, self.peer, self.tell = order, peer, tell

    @property
    def lends(self) -> bool:
        return self.order.role == "source"

    @property
    def rank(self) -> int:
        return 0 if self.lends else 1

    @property
    def device(self) -> str:
        return self.order.devices[self.rank]

    @property
    def directory(self) -> Path:
        return Path(self.order.directory)

    @property
    def layout(self) -> Layout:
        from benchmarks.gpu import models

        return models.layout(self.order.model, self.order.size)

    def scaled(self, full: int, toy: int) -> int:
        """A size for this run."""
        return toy if self.order.size == "toy" else full

    def settle(self) -> None:
        """Wait for everything queued on this side's device."""
        if self.device != "cpu":
            torch.cuda.synchronize(self.device)

    def rates(self, label: str, nbytes: int, move: Callable[[], None], note: str = "") -> None:
        """Time ``move`` once to warm up and then ``rounds`` times, both sides in step; the joiner tells."""
        seconds: list[float] = []
        for _ in range(self.order.rounds + 1):
            self.settle()
            self.peer.meet()
            began = time.perf_counter()
            move()
            self.settle()
            seconds.append(time.perf_counter() - began)
        if not self.lends:
            first, *others = [nbytes / each / 1e9 for each in seconds]
            self.tell(Figure(label, "GB/s", tuple(others), first, note))


def needs_cuda(task: Task, *, two: bool = False) -> None:
    """Raises Unable where this case has no GPU, or not the two it needs. Selects this side's."""
    if task.device == "cpu":
        raise Unable("needs CUDA")
    if two and task.order.devices[0] == task.order.devices[1]:
        raise Unable("needs two GPUs")
    torch.cuda.set_device(task.device)


def needs_room(task: Task, nbytes: int) -> None:
    """Raises Unable where this side's GPU has not that much free memory."""
    if task.device == "cpu":
        return
    shared = 2 if task.order.devices[0] == task.order.devices[1] else 1
    free, _ = torch.cuda.mem_get_info(task.device)
    if free < nbytes * shared + (1 << 30):
        raise Unable(f"needs {nbytes * shared / 1e9:.0f} GB on {task.device}, {free / 1e9:.0f} GB are free")


def enter(order: Order, out: Connection, peer: Connection) -> None:
    """Run one side of a case; returns never."""
    os.setsid()
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    threading.Thread(target=_end_with_parent, args=(out,), daemon=True).start()

    def tell(message: Message) -> None:
        out.send_bytes(msgspec.json.encode(message))

    try:
        module, _, function = order.function.partition(":")
        measure = cast("Callable[[Task], None]", getattr(import_module(module), function))
        measure(Task(order, Peer(peer), tell))
        tell(Ended())
    except Unable as error:
        tell(Failed(str(error)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        tell(Failed("the other side ended", orphaned=True))
    except BaseException as error:
        traceback.print_exc()
        tell(Failed(_described(error)))
    os._exit(0)  # what was measured may hang when it is taken down


def _described(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _end_with_parent(out: Connection) -> None:
    try:
        out.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)
