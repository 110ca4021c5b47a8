"""One pull over a connection: what is read next, and what counts as landed.

A range has landed when its reads have all succeeded, and the source was still there, with the grant open, after
that. The library's word alone proves nothing, and the digest has the last one. Once the first read into the target
has begun, a pull ends when the last one has, and not before; on TCP, a read from a source that has stopped is made
to. It must not know how the connection came about (``connection.py``), nor the event loop.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from coldstart.layout import Span
from coldstart.ports import Landed, Memory
from coldstart_transfer_engine.lanes import Lane
from coldstart_transfer_engine.library import Engine, Route
from coldstart_transfer_engine.line import Line
from coldstart_transfer_engine.places import Table, check, moves
from coldstart_transfer_engine.reads import Reads, Sizes, Step

_LOOK_SECONDS: Final = 0.05
"""How often a pull that is held back by a cap looks whether it should stop."""


class Pull:
    """The ranges of one pull; ``run`` is the connection's, ``stop`` is anybody's.

    Args:
        session: of the source's engine.
        still_seconds: a source from which no read succeeds for so long is given up.
        cut: makes reads fail whose source has stopped.
    """

    def __init__(
        self,
        session: str,
        spans: Sequence[Span],
        into: Memory,
        landed: Landed,
        *,
        still_seconds: float,
        cut: Callable[[], None],
    ) -> None:
        self._session, self._spans, self._into, self._landed = session, spans, into, landed
        self._still_seconds, self._cut = still_seconds, cut
        self._stopped = False
        self.done = False
        """Everything has landed."""
        self.route: Route | None = None
        """What bytes have really come over, once some have."""

    def stop(self) -> None:
        """End soon: begin no more reads."""
        self._stopped = True

    def run(self, engine: Engine, lanes: Sequence[Lane], source: Line, local: Table) -> None:
        """Fetch everything, or as much as there is time for until it is stopped; nothing is in flight afterwards.

        Raises:
            TransportError: the source has ended, or holds the bytes no more; a read has failed, or none ends.
        """
        check(self._into.layout, local, source.table, self._spans)
        sizes = Sizes(engine.route)
        reads = Reads(engine, self._session, lanes, self._cut)
        try:
            self._fetch(reads, sizes, source, local, engine.route)
        finally:
            reads.drain()

    def _fetch(self, reads: Reads, sizes: Sizes, source: Line, local: Table, route: Route) -> None:
        ahead, free_at = _Ahead(self._spans), 0.0
        while True:
            rate, now = source.rate(), time.monotonic()
            while reads.room and not (rate and reads.steps) and now >= free_at and ahead.left and not self._stopped:
                span = ahead.take(sizes.next(rate, ahead.left))
                reads.add(Step(span, moves(local, source.table, span)))
                free_at = now + span.length / rate if rate else 0.0
            if reads.steps and not self._stopped:
                reads.look(self._still_seconds)
                for step in reads.finished():
                    source.rate()  # it has landed if the source is still the one that gave the ticket
                    self.route = route
                    sizes.took(time.monotonic() - step.began)
                    self._landed(step.span)
            elif self._stopped:
                return
            elif ahead.left:
                source.wait(min(max(free_at - now, 0.0), _LOOK_SECONDS))
            else:
                self.done = True
                return


class _Ahead:
    """The ranges that no read has been begun for."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = deque(span for span in spans if span.length)
        self.left = sum(span.length for span in self._spans)
        """Bytes of them."""

    def take(self, size: int) -> Span:
        """The next ``size`` bytes, or less where a range ends."""
        span = self._spans.popleft()
        if span.length > size:
            self._spans.appendleft(Span(span.offset + size, span.length - size))
        taken = Span(span.offset, min(size, span.length))
        self.left -= taken.length
        return taken
