"""Has functions called in the thread that waits for a cold start: vLLM's own.

vLLM keeps state per thread (the current device, contexts, collectives), so its loader must run where
vLLM called us, while the cold start runs beside it in a thread with an event loop. That thread
hands work over here and waits.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")

_GONE = "nobody waits for this cold start any more"


class Relay(Generic[T]):
    """One thread :meth:`serve`\\ s, others :meth:`call`."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Callable[[], T], Future[T]] | None] = SimpleQueue()
        self._lock = Lock()
        self._closed = False

    def call(self, function: Callable[[], T]) -> T:
        """What ``function`` returns or raises in the serving thread. Blocks.

        Raises:
            RuntimeError: nobody serves any more.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(_GONE)
            self._queue.put((function, future))
        return future.result()

    def serve(self) -> None:
        """Call what others ask for, one after another, until :meth:`close`."""
        try:
            while (asked := self._queue.get()) is not None:
                function, future = asked
                try:
                    future.set_result(function())
                except Exception as error:
                    future.set_exception(error)
                except BaseException:
                    future.set_exception(RuntimeError(_GONE))
                    raise
        finally:
            self.close()
            self._refuse_the_rest()

    def close(self) -> None:
        """End :meth:`serve` once it has done what it was asked for; any thread, idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)

    def _refuse_the_rest(self) -> None:
        while not self._queue.empty():
            asked = self._queue.get()
            if asked is not None:
                asked[1].set_exception(RuntimeError(_GONE))
