"""One pull: an engine and a line of its own, in a thread of its own.

Decides what counts as landed: a range whose reads have all succeeded, and whose source was still
there, with the grant open, after that. The library's word alone proves nothing, and the digest has
the last one.

A pull ends in two ways. Until the first read into the target it can be left at once, on TCP even
where the library hangs in its own handshake (a minute, at worst). From then on it ends when the last read
has ended, and not before; on TCP, a read from a source that has stopped is made to. It must not know
the event loop; ``transport.py`` waits for it.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from coldstart.errors import TransportError
from coldstart.layout import Span
from coldstart.ports import Landed, Memory
from coldstart_transfer_engine import line, sockets
from coldstart_transfer_engine.exports import Open, table_of
from coldstart_transfer_engine.library import Engine, Route
from coldstart_transfer_engine.line import Line, Ticket, Way
from coldstart_transfer_engine.places import Move, Table, check, moves
from coldstart_transfer_engine.reads import WINDOW, Reads, Sizes, Step
from coldstart_transfer_engine.surroundings import current

_LOOK_SECONDS: Final = 0.05
"""How often a pull that is held back by a cap looks whether it should stop."""


class Pull:
    """A pull that runs in a thread from :meth:`start` on.

    Args:
        way: the source's engine that is read from.
        opened: makes our engine; it is closed here.
        answer_seconds: how long the source may take to answer on the line.
        still_seconds: a source from which no read succeeds for so long is given up.
    """

    def __init__(
        self,
        ticket: Ticket,
        way: Way,
        spans: Sequence[Span],
        into: Memory,
        landed: Landed,
        *,
        opened: Open,
        answer_seconds: float,
        still_seconds: float,
    ) -> None:
        self._ticket, self._way, self._spans = ticket, way, spans
        self._into, self._landed = into, landed
        self._opened = opened
        self._answer_seconds, self._still_seconds = answer_seconds, still_seconds
        self._lock = threading.Lock()
        self._stopped = False
        self._touching = False
        self._sizes = Sizes()
        self._thread: threading.Thread | None = None
        self._engine: Engine | None = None
        self.done = False
        self.error: Exception | None = None
        self.route: Route | None = None
        """What bytes have really come over, once some have."""

    def start(self, ended: Callable[[], None]) -> None:
        """Run; ``ended`` is called, from the thread, when nothing is written any more."""
        self._thread = threading.Thread(
            target=self._run, args=(ended,), name="coldstart-te-pull", daemon=True
        )
        self._thread.start()

    def stop(self, error: Exception | None = None) -> None:
        """End it soon, with ``error`` if it has none of its own. Any thread."""
        with self._lock:
            self._stopped = True
            self.error = self.error or error

    @property
    def touching(self) -> bool:
        """Whether it may write into the target; once it was stopped before, it never will."""
        with self._lock:
            return self._touching

    def join(self, seconds: float) -> bool:
        """Wait for the thread, which ends its engine last; false if it has not ended."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()

    # ------------------------------------------------------------------------------ in the thread

    def _run(self, ended: Callable[[], None]) -> None:
        try:
            with current(self._into.device):
                self._pull()
        except Exception as error:
            self.stop(error)
        finally:
            with self._lock:
                self._stopped, self._touching = True, False
            ended()
            if self._engine is not None:
                self._engine.close()

    def _pull(self) -> None:
        source = Line(self._ticket, self._answer_seconds)
        try:
            self._read(source)
        except TransportError as error:
            if error.reason == "failed":  # the line knows better why
                source.wait(line.VERDICT_SECONDS)
                source.rate()
            raise
        finally:
            source.close()

    def _read(self, source: Line) -> None:
        local = table_of(self._into)
        check(self._into.layout, local, source.table, self._spans)
        self._engine = engine = self._opened(self._way.route, self._into.device)
        if engine.route == "tcp":
            self._knock(Reads(engine, self._way.session, self._cut), source.table)
        else:
            engine.register(local.regions(self._into.device))
        with self._lock:
            if self._stopped:
                return
            self._touching = True
        reads = Reads(engine, self._way.session, self._cut)
        try:
            self._fetch(reads, source, local)
        finally:
            reads.drain()

    def _fetch(self, reads: Reads, source: Line, local: Table) -> None:
        ahead, free_at = _Ahead(self._spans), 0.0
        while True:
            rate, now = source.rate(), time.monotonic()
            while reads.steps < (1 if rate else WINDOW) and now >= free_at and ahead.left and not self._stopped:
                span = ahead.take(self._sizes.next(rate))
                reads.add(Step(span, moves(local, source.table, span)))
                free_at = now + span.length / rate if rate else 0.0
            if reads.steps and not self._stopped:
                self._look(reads)
                for step in reads.finished():
                    self._count(step, source)
            elif self._stopped:
                return
            elif ahead.left:
                source.wait(min(max(free_at - now, 0.0), _LOOK_SECONDS))
            else:
                self.done = True
                return

    def _knock(self, reads: Reads, table: Table) -> None:
        """Open the session with a read that goes nowhere near the target.

        A source that has just stopped makes the library wait for a minute here, and everybody may leave meanwhile.
        """
        scratch = ctypes.create_string_buffer(8)
        try:
            reads.add(Step(Span(0, 1), [Move(ctypes.addressof(scratch), table.places[0].address, 1)]))
            while reads.steps and not self._stopped:
                self._look(reads)
                deque(reads.finished(), maxlen=0)
        finally:
            reads.drain()

    def _look(self, reads: Reads) -> None:
        if reads.still > self._still_seconds:
            raise TransportError(
                f"no read of the transfer engine has ended for {self._still_seconds:g} s", reason="timeout"
            )

    def _cut(self) -> None:
        """Only TCP needs it: the others' reads end by the adapter's own clocks."""
        if self._way.data_port:
            sockets.cut(self._ticket.host, self._way.data_port)

    def _count(self, step: Step, source: Line) -> None:
        """Its reads have succeeded; it has landed if the source is still the one that gave the ticket."""
        source.rate()
        assert self._engine is not None
        self.route = self._engine.route
        self._sizes.took(time.monotonic() - step.began)
        self._landed(step.span)


class _Ahead:
    """The ranges that no read has been begun for."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = deque(span for span in spans if span.length)

    @property
    def left(self) -> bool:
        return bool(self._spans)

    def take(self, size: int) -> Span:
        """The next ``size`` bytes, or less where a range ends."""
        span = self._spans.popleft()
        if span.length > size:
            self._spans.appendleft(Span(span.offset + size, span.length - size))
        return Span(span.offset, min(size, span.length))
