"""One of the zoo's two processes: the lender or the joiner, for one family after the other.

The lender saves a small model, loads it the ordinary way and asks it; then it cold-starts from
storage, asks again, and lends until it is told to stop. The joiner cold-starts from the lender
and asks. Both only tell what they saw; ``start.py`` judges.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import anyio.to_thread
import msgspec
import torch

import coldstart
from coldstart import config
from coldstart.errors import SkeletonError
from tests.zoo.families import families
from tests.zoo.family import Family
from tests.zoo.seen import Seen, look, naive


class Order(msgspec.Struct, frozen=True):
    """What a worker is to do next. ``stop`` ends what the one before has begun."""

    do: Literal["lend", "join", "stop"]
    family: str = ""
    directory: str = ""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has to say of one order. ``error`` is empty where a module came of it.

    ``whole`` says why storage cannot be read chunk by chunk; ``recomputed`` names what did not travel.
    """

    error: str = ""
    refused: bool = False
    ordinary: Seen | None = None
    naive: str = ""
    cold: Seen | None = None
    path: str = ""
    verified: bool = False
    bytes: int = 0
    bytes_peer: int = 0
    counts: Mapping[str, int] = {}
    recomputed: Sequence[str] = ()
    whole: str = ""
    seconds: float = 0.0


def run(connection: Connection, valkey: str) -> None:
    """The process: takes orders from ``connection`` until it is closed.

    Args:
        valkey: directory of the store that both workers use.
    """
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TORCHDYNAMO_DISABLE="1")
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, too, which ends us
    with connection:
        anyio.run(_serve, connection, valkey)


async def _serve(connection: Connection, valkey: str) -> None:
    while True:
        try:
            order: Order = await anyio.to_thread.run_sync(connection.recv)
        except EOFError:
            return
        if order.do == "stop":
            continue
        begun, family, told = time.monotonic(), families()[order.family], Told()
        try:
            if order.do == "lend":
                told = await anyio.to_thread.run_sync(_ordinary, family, Path(order.directory))
            async with _cold(order, family, valkey, told) as told:
                connection.send(msgspec.structs.replace(told, seconds=time.monotonic() - begun))
                if order.do == "lend":
                    await anyio.to_thread.run_sync(connection.recv)
        except Exception as error:  # whatever goes wrong is this family's outcome, not the end of the zoo
            connection.send(_failed(error, told))


def _ordinary(family: Family, directory: Path) -> Told:
    """Save the model, and ask the one that its library loads."""
    family.save(directory)
    if not family.loads:
        return Told()
    seen = look(family, family.load(directory))
    return Told(ordinary=seen, naive=naive(family, family.load(directory), seen.answers))


@asynccontextmanager
async def _cold(order: Order, family: Family, valkey: str, told: Told) -> AsyncIterator[Told]:
    """A real cold start; inside the block its weights are lent."""
    settings = config.load({"directory": valkey, "cache": "none", "drain": 2.0}, environ={})
    async with coldstart.join(
        order.directory, skeleton=family.skeleton, dtype=family.dtype, worker=order.do, settings=settings
    ) as replica:
        built, report = replica.built, replica.report
        classes = built.skeleton.classify(built.module)
        cold = await anyio.to_thread.run_sync(look, family, built.module)
        if order.do == "lend" and family.warm is not None:
            await anyio.to_thread.run_sync(family.answer, built.module, family.warm(built.module))
        yield msgspec.structs.replace(
            told,
            cold=cold,
            path=report.path,
            verified=report.verified,
            bytes=report.bytes_total,
            bytes_peer=report.bytes_peer,
            counts=classes.counts,
            recomputed=[each.name for each in classes.of("recomputed")],
            whole=built.storage.reason,
        )


def _failed(error: BaseException, told: Told) -> Told:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    words = f"{type(error).__name__}: {error}"
    return msgspec.structs.replace(told, error=words, refused=isinstance(error, SkeletonError))
