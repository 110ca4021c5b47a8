"""What runs in a forked worker: ``coldstart worker --json``, which also answers questions while it serves.

Each line on stdin is a question: ``digests`` (of every tensor that it serves) or ``state`` (what it
lends and what it costs). The end of stdin changes nothing: workers end by signals, as they do in a
fleet. How a worker comes into the world is decided in ``nursery.py``.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import hashlib
import os
import resource
import sys
import threading
from collections.abc import Mapping
from typing import cast

import anyio
import msgspec

from coldstart import config
from coldstart.cli import tracing
from coldstart.cli.output import emit, guard, note
from coldstart.cli.worker import Asked, serve
from coldstart.errors import ColdstartError
from coldstart.replica import Replica
from coldstart.skeletons.adoption import elements
from coldstart.skeletons.tensors import Tensors
from rig import disk

_CLONE_NEWNET = 0x40000000


class Task(msgspec.Struct, frozen=True):
    """``namespace`` is a file that names a network namespace; ``disk`` a fault of :mod:`rig.disk`."""

    asked: Asked
    environment: dict[str, str] = {}
    settings: dict[str, object] = {}
    namespace: str = ""
    disk: str = ""


class Digests(msgspec.Struct, frozen=True):
    """SHA-256 of each tensor as it stands in memory."""

    digests: Mapping[str, str]
    event: str = "digests"


class Standing(msgspec.Struct, frozen=True):
    """What a worker lends, and what it costs."""

    lending: int
    threads: int
    descriptors: int
    resident: int
    event: str = "state"


def main(task: object) -> int:
    """Do the task; returns the exit code, which is the command line's."""
    wanted = msgspec.convert(task, Task)
    os.environ.update(wanted.environment)
    if wanted.namespace:
        _enter(wanted.namespace)
    if wanted.disk:
        disk.break_reads(wanted.disk)
    guard()
    finish = tracing.set_up(wanted.asked.name, verbose=wanted.asked.verbose, json=False)
    try:
        anyio.run(serve, wanted.asked, config.load(wanted.settings), _answer)
    except ColdstartError as error:
        note(f"coldstart: {error}")
        return error.exit_code
    finally:
        finish()
        sys.stdout.flush()
    return 0


async def _answer(replica: Replica) -> None:
    reader = asyncio.StreamReader()
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    try:
        while line := await reader.readline():
            if line == b"digests\n":
                emit(await anyio.to_thread.run_sync(_digests, replica))
            else:
                emit(_standing(replica))
        await anyio.sleep_forever()
    finally:
        pipe.close()


def _digests(replica: Replica) -> Digests:
    module = cast(Tensors, replica.module)
    return Digests(
        {
            name: hashlib.sha256(elements(module[name]).contiguous().numpy().data).hexdigest()
            for name in module.names()
        }
    )


def _standing(replica: Replica) -> Standing:
    gc.collect()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * resource.getpagesize()
    return Standing(replica.lending, threading.active_count(), len(os.listdir("/proc/self/fd")), resident)


def _enter(namespace: str) -> None:
    """Go into a network namespace; before there is any thread or socket."""
    with open(namespace) as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
