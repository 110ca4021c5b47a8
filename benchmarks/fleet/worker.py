"""One worker of the shaped run: ``coldstart worker --json``, held back when its skeleton and memory are ready.

    python -m benchmarks.fleet.worker TASK.json

It says that it is held, and goes on at the first line on stdin: Python, torch and the skeleton are not
what the benchmark times. Whatever is asked of the store or of peers comes after that. Its storage is
read at a stated rate, as if over a link; the product's own reads are only paced, not replaced.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import anyio
import msgspec

from coldstart import config
from coldstart.cli import tracing
from coldstart.cli.output import guard, note
from coldstart.cli.worker import Asked, serve
from coldstart.errors import ColdstartError
from coldstart.layout import Span
from coldstart.ports import Landed, Memory, Skeleton
from coldstart.replica import Replica
from coldstart.skeletons import tensors
from coldstart.transports.storage import StorageTransport

HELD = b'{"event":"held"}\n'
BEFOREHAND = ("coldstart.wiring", "coldstart.bus.redis", "coldstart.transports.tcp", "coldstart.joining")
"""What a cold start imports once its skeleton is built: not to be timed either."""
STEP = 1 << 20
"""Bytes of storage that are read at once."""


class Task(msgspec.Struct, frozen=True):
    """``storage`` in bytes per second; 0: as quick as the disk."""

    asked: Asked
    settings: dict[str, str]
    storage: float = 0.0


class Held(tensors.TensorsSkeleton):
    """Waits when the module has its memory, before anything is asked for."""

    def finalise(self, module: tensors.Tensors) -> None:
        super().finalise(module)
        for name in BEFOREHAND:
            import_module(name)
        os.write(sys.stdout.fileno(), HELD)
        if not sys.stdin.readline():  # whoever started it is gone
            os._exit(1)


class HeldFactory(tensors.Factory):
    def open(self, *, dtype: str = "", **options: str) -> Skeleton[tensors.Tensors]:
        return Held(dtype=dtype)


def pace_storage(rate: float) -> None:
    """From now on storage gives ``rate`` bytes per second."""
    plain = StorageTransport.pull

    async def paced(
        self: StorageTransport, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed
    ) -> None:
        began, done = time.monotonic(), 0
        for span in spans:
            for offset in range(span.offset, span.end, STEP):
                piece = Span(offset, min(STEP, span.end - offset))
                done += piece.length
                await anyio.sleep(max(0.0, began + done / rate - time.monotonic()))
                await plain(self, ticket, (piece,), into, landed)

    StorageTransport.pull = paced  # type: ignore[method-assign]


async def _forever(replica: Replica) -> None:
    await anyio.sleep_forever()


def main(path: str) -> int:
    """Do the task in the file ``path``; returns the exit code, which is the command line's."""
    task = msgspec.json.decode(Path(path).read_bytes(), type=Task)
    tensors.FACTORY = HeldFactory()
    if task.storage:
        pace_storage(task.storage)
    guard()
    tracing.set_up(task.asked.name, verbose=task.asked.verbose, json=False)
    try:
        anyio.run(serve, task.asked, config.load(task.settings), _forever)
    except ColdstartError as error:
        note(f"coldstart: {error}")
        return error.exit_code
    finally:
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
