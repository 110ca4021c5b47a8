"""A cold start in a thread of its own, which goes on lending when the engine serves.

Decides how the loader, which blocks, and coldstart, which is asynchronous, live in one process. The
thread ends with the process: it is told when the main thread ends, withdraws, and gives transfers in
flight their time. A process that is killed is forgotten when its lease runs out.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Set
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import coldstart
from coldstart import ColdstartError, Progress, Rank, Replica, Report
from coldstart.config import Settings
from coldstart_vllm.relay import Relay
from coldstart_vllm.skeleton import EngineSkeleton

if TYPE_CHECKING:
    from torch import nn


class Order(NamedTuple):
    """What is to be started; see :func:`coldstart.join`."""

    checkpoint: Path
    skeleton: EngineSkeleton
    device: str
    rank: Rank
    revision: str
    settings: Settings


class Background:
    """One module's cold start: :meth:`start` blocks until its weights are right, :meth:`leave` ends the lending."""

    def __init__(self, order: Order, relay: Relay[Set[str] | None], tell: Callable[[Progress], None]) -> None:
        self._order, self._relay, self._tell = order, relay, tell
        self._thread = threading.Thread(target=self._main, name="coldstart")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._left: asyncio.Event | None = None
        self._leaving = False
        self._report: Report | None = None
        self._error: BaseException | None = None
        self.replica: Replica | None = None
        """While the weights are here and may be lent."""

    def start(self) -> Report:
        """Fill the module; the calling thread does meanwhile what the skeleton asks of it (``relay``).

        Raises:
            ColdstartError: no path led to verified weights.
        """
        _end_with_the_process(self)
        self._thread.start()
        try:
            self._relay.serve()
        except BaseException:
            self.leave()
            raise
        if self._report is not None:
            return self._report
        if isinstance(self._error, ColdstartError):
            raise self._error
        raise ColdstartError(f"the cold start broke: {self._error!r}") from self._error

    def leave(self, *, wait: bool = False) -> None:
        """Withdraw as a source. ``wait``: until nobody reads these weights and their memory is given up."""
        self._leaving = True
        loop, left = self._loop, self._left
        if loop is not None and left is not None:
            with suppress(RuntimeError):  # the loop is closed: it has ended
                loop.call_soon_threadsafe(left.set)
        if wait and self._thread.ident is not None:
            self._thread.join()

    def _main(self) -> None:
        try:
            asyncio.run(self._life())
        except BaseException as error:
            self._error = error
        finally:
            self.replica = None
            self._relay.close()

    async def _life(self) -> None:
        self._left = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        order = self._order
        async with coldstart.join(
            order.checkpoint,
            skeleton=order.skeleton,
            device=order.device,
            rank=order.rank,
            revision=order.revision,
            settings=order.settings,
            on_progress=self._tell,
            wait=False,
        ) as replica:
            ready, left = asyncio.ensure_future(replica.ready()), asyncio.ensure_future(self._left.wait())
            if self._leaving:
                self._left.set()
            await asyncio.wait({ready, left}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                ready.cancel()
                return
            self._report = ready.result()
            self.replica = replica
            self._relay.close()
            await left


# ------------------------------------------------------------------------- all of them in a process

_running: WeakSet[Background] = WeakSet()
_watch: threading.Thread | None = None


def _end_with_the_process(background: Background) -> None:
    """Have ``background`` leave when the main thread ends: the interpreter waits for its thread before any atexit."""
    global _watch
    _running.add(background)
    if _watch is None or not _watch.is_alive():
        _watch = threading.Thread(target=_leave_at_the_end, name="coldstart end")
        _watch.start()


def _leave_at_the_end() -> None:
    threading.main_thread().join()
    for background in list(_running):
        background.leave()


_lending: WeakKeyDictionary[nn.Module, Background] = WeakKeyDictionary()


def remember(module: nn.Module, background: Background) -> None:
    """So that :func:`withdraw` finds it, whichever loader is asked."""
    _lending[module] = background


def withdraw(module: nn.Module) -> bool:
    """End the lending of ``module`` before its weights change; false if there was none. Blocks for readers."""
    background = _lending.pop(module, None)
    if background is not None:
        background.leave(wait=True)
    return background is not None


def withdraw_all() -> None:
    """End all lending of this process. Blocks for readers."""
    for module in list(_lending):
        withdraw(module)
