"""A process that ``coldstart bench`` starts and asks to do one thing after another.

Decides how a request on stdin becomes a reply on stdout, and that this process ends at once
when its parent is gone, whatever it is doing. What the requests do is in ``bench_copies.py`` and
``bench_starts.py``. Runs as ``python -m coldstart.cli.bench_child``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import anyio
import msgspec

from coldstart.cli.bench_words import (
    Done,
    Failed,
    Hash,
    Hold,
    Imports,
    Lend,
    Load,
    Plain,
    Prepare,
    Pull,
    Reply,
    Request,
    Start,
    Started,
    Took,
)
from coldstart.errors import ColdstartError

if TYPE_CHECKING:
    from coldstart.cli.bench_copies import Copies

IMPORTED = (
    "coldstart.replica",
    "coldstart.skeletons.assembly",
    "coldstart.skeletons.tensors",
    "coldstart.bus.embedded",
    "coldstart.bus.redis",
    "coldstart.transports.tcp",
    "coldstart.cli.bench_starts",
)
"""What a cold start of the bench imports, late or early."""


class Child:
    """Fulfils requests in the order in which they come."""

    def __init__(self, kept: AsyncExitStack) -> None:
        self._kept = kept
        self._copying: Copies | None = None

    async def fulfil(self, request: Request) -> Reply:
        """Do one thing; what it raises becomes :class:`Failed`."""
        match request:
            case Imports():
                for name in IMPORTED:
                    import_module(name)
                return Done(peak_bytes())
            case Hold() | Start():
                return await self._start(request)
            case Load():
                from coldstart.cli import bench_copies

                return Took(bench_copies.load(request))
            case Lend():
                return await (await self._copies(request.checkpoint)).lend()
            case Prepare():
                await self._copies(request.checkpoint)
                return Done(peak_bytes())
            case Plain() | Pull() | Hash():
                assert self._copying is not None
                return Took(await self._copying.run(request))

    async def _start(self, request: Hold | Start) -> Reply:
        from coldstart.cli import bench_starts

        if isinstance(request, Start):
            return Started(await bench_starts.start(request), peak_bytes())
        await self._kept.enter_async_context(bench_starts.holding(request))
        return Done(peak_bytes())

    async def _copies(self, checkpoint: str) -> Copies:
        from coldstart.cli import bench_copies

        self._copying = await bench_copies.Copies.built(checkpoint)
        return self._copying


def peak_bytes() -> int:
    """The largest resident size of this process so far.

    From ``/proc`` where there is one: the high-water mark of ``getrusage`` includes the parent's.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


async def serve(replies: BinaryIO) -> None:
    """Answer requests until stdin ends, which ends the process."""
    requests: asyncio.Queue[bytes] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    threading.Thread(target=_listen, args=(requests, loop), daemon=True).start()
    async with AsyncExitStack() as kept:
        child = Child(kept)
        while True:
            request = msgspec.json.decode(await requests.get(), type=Request)
            try:
                reply: Reply = await child.fulfil(request)
            except ColdstartError as error:
                reply = Failed(str(error))
            replies.write(msgspec.json.encode(reply) + b"\n")
            replies.flush()


def _listen(requests: asyncio.Queue[bytes], loop: asyncio.AbstractEventLoop) -> None:
    """Hand each line to the loop. The end of stdin is the parent's end: nothing is worth finishing."""
    with open(sys.stdin.fileno(), "rb", closefd=False) as lines:  # not sys.stdin: its lock is wanted at exit
        for line in lines:
            loop.call_soon_threadsafe(requests.put_nowait, line)
    os._exit(0)


def main() -> None:
    """Replies keep stdout to themselves; whatever else is printed goes to stderr."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    anyio.run(serve, replies)


if __name__ == "__main__":
    main()
