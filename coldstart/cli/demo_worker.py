"""One worker of the demo, in a process of its own.

``python -m coldstart.cli.demo_worker TASK`` with a :class:`Task` in JSON. Speaks JSON lines on
stdout as ``coldstart worker --json`` does. While it serves, each line on stdin is a JSON list of
texts, answered with what the module makes of them. The end of stdin ends it, so that no worker
outlives the demo.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import anyio
import anyio.to_thread
import msgspec
from anyio.streams.memory import MemoryObjectSendStream

from coldstart import config
from coldstart.cli import tracing
from coldstart.cli.ending import leave
from coldstart.cli.output import emit, guard
from coldstart.cli.worker import Asked, Told, serve
from coldstart.errors import ColdstartError
from coldstart.replica import Replica


class Task(msgspec.Struct, frozen=True):
    """``asked`` and ``settings`` make a worker; with ``ordinary`` the model is loaded without coldstart."""

    asked: Asked
    settings: dict[str, object] = {}
    ordinary: tuple[str, ...] = ()


class Answered(msgspec.Struct, frozen=True):
    """What the module makes of the texts; None where its builder cannot say."""

    answers: Sequence[Sequence[float]] | None
    event: str = "answered"


async def work(task: Task) -> None:
    """Serve, and answer lines of texts, until stdin ends or a signal comes."""
    stop = anyio.Event()
    send, receive = anyio.create_memory_object_stream[bytes](16)
    settings = config.load(task.settings)
    failure: Exception | None = None

    async def answer(replica: Replica) -> None:
        assembly = import_module("coldstart.skeletons.assembly")
        async for line in receive:
            texts = msgspec.json.decode(line, type=list[str])
            emit(Answered(await anyio.to_thread.run_sync(assembly.answers, replica.built, texts)))

    with send, receive:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read, send, stop)
            try:
                await serve(task.asked, settings, answer, stop)
            except Exception as error:  # raised below, outside of the task group
                failure = error
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _read(lines: MemoryObjectSendStream[bytes], stop: anyio.Event) -> None:
    """Pass on the lines of stdin; its end, which the death of the demo also brings, is the signal to stop."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        while line := await reader.readline():
            await lines.send(line)
    finally:
        transport.close()
    stop.set()


def _nothing() -> None:
    return


def main() -> NoReturn:
    """Do the task; an error of ours is the last thing told, and the demo is who prints it."""
    guard()
    code = 0
    task = msgspec.json.decode(sys.argv[1], type=Task)
    finish: Callable[[], None] = _nothing
    try:
        finish = tracing.set_up(task.asked.name, verbose=task.asked.verbose, json=False)
        if task.ordinary:
            assembly = import_module("coldstart.skeletons.assembly")
            path = Path(task.asked.checkpoint)
            emit(Answered(assembly.ordinary_answers(path, task.asked.skeleton, task.ordinary)))
        else:
            anyio.run(work, task)
    except ColdstartError as error:
        emit(Told("failed", task.asked.name, time.monotonic(), error=str(error)))
        code = error.exit_code
    finally:
        finish()
    leave(code)


if __name__ == "__main__":
    main()
