"""A joiner's connection to one grant: an engine, a line to the source and a thread of its own, for pull after pull.

Decides what is done once (the line, the engine, the first read, which maps the source's memory: 10 ms for 16 GB
over NVLink, measured) and who ends it: our side, the source's notice, a pull that failed. All of it happens in
this thread, but for reads that are begun in others (``lanes.py``).

Until a pull asks for bytes, nothing of the target is touched, and the connection can be left at once, even
where the library hangs in its own handshake (a minute, at worst). It must not know the event loop
(``transport.py``), nor how bytes are fetched (``joiner.py``).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from coldstart.errors import TransportError
from coldstart.layout import Span
from coldstart.ports import Memory, Signer
from coldstart_transfer_engine import lanes, line, scratch, sockets
from coldstart_transfer_engine.exports import Open, table_of
from coldstart_transfer_engine.joiner import Pull
from coldstart_transfer_engine.lanes import Lane
from coldstart_transfer_engine.library import Engine
from coldstart_transfer_engine.line import Line, Ticket, Way
from coldstart_transfer_engine.places import Move, Table
from coldstart_transfer_engine.reads import Reads, Step
from coldstart_transfer_engine.surroundings import current

LINGER_SECONDS: Final = 1.0
"""An engine that is not needed any more ends so much later: while one ends, which takes about 20 ms, no other
thread of the interpreter runs, and a joiner is just about to serve."""
_KNOCK: Final = 8


def _nobody() -> None:
    """Who is told when nobody waits any more."""


class Connection:
    """A connection that is made, and kept, in a thread from :meth:`start` on.

    Args:
        way: the source's engine that is read from.
        into: what all pulls are into.
        opened: makes our engine; it is closed here.
        answer_seconds: how long the source may take to answer on the line.
        still_seconds: a source from which no read succeeds for so long is given up.
        told: called, from the thread, whenever something has ended: set-up, a pull, all of it.
        signer: of the fleet, if it has keys.
    """

    def __init__(
        self,
        ticket: Ticket,
        way: Way,
        into: Memory,
        *,
        opened: Open,
        answer_seconds: float,
        still_seconds: float,
        told: Callable[[], None],
        signer: Signer | None = None,
    ) -> None:
        self._ticket, self._way, self._into, self._told = ticket, way, into, told
        self._signer = signer
        self._opened = opened
        self._answer_seconds, self._still_seconds = answer_seconds, still_seconds
        self._local = table_of(into)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._hurried = threading.Event()
        self._pulls: deque[Pull] = deque()
        self._pull: Pull | None = None
        self._engine: Engine | None = None
        self._thread = threading.Thread(target=self._run, name="coldstart-te-pull", daemon=True)
        self.error: Exception | None = None
        self.made = False
        """Everything is set up."""
        self.over = False
        """Nothing is written through it any more."""

    def start(self) -> None:
        self._thread.start()

    def add(self, pull: Pull) -> None:
        """Do ``pull`` as soon as everything is set up, and those before it have ended."""
        with self._lock:
            self._pulls.append(pull)
        self._poke()

    def stop(self, error: Exception | None = None) -> None:
        """End soon, with ``error`` if it has none of its own. Any thread."""
        with self._lock:
            self.error = self.error or error
            self._stopped.set()
            if self._pull is not None:
                self._pull.stop()
        self._poke()

    def suits(self, into: Memory) -> bool:
        """Whether it is alive and reads into ``into`` as that lies now."""
        alive = not self.over and not self._stopped.is_set()
        return alive and self._into is into and table_of(into).places == self._local.places

    @property
    def touching(self) -> bool:
        """Whether it may write into the target; once it was stopped before, it never will."""
        with self._lock:
            return self._pull is not None

    @property
    def ended(self) -> bool:
        """Whether its thread has ended, too."""
        return self.over and not self._thread.is_alive()

    def join(self, seconds: float) -> bool:
        """Wait for the thread, which ends its engine last, now at once; false if it has not ended."""
        self._hurried.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _poke(self) -> None:
        with self._lock:
            if not self.over:
                os.eventfd_write(self._wake, 1)

    # ------------------------------------------------------------------------------ in the thread

    def _run(self) -> None:
        try:
            with current(self._into.device):
                self._live()
        except Exception as error:
            self.stop(error)
        finally:
            with self._lock:
                self.over = True
                self._pull = None
                os.close(self._wake)
            self._told()
            if self._engine is not None:
                self._hurried.wait(LINGER_SECONDS)
                self._engine.close()
            self._told = _nobody  # who waited refers to us: without this, memory would lie until the garbage collector

    def _live(self) -> None:
        source = Line(self._ticket, self._answer_seconds, self._signer)
        try:
            engine = self._engine_of_ours()
            with lanes.opened(engine.route, self._into.device) as hands:
                self._knock(engine, hands, source.table)
                self.made = True
                self._told()
                while (pull := self._next(source)) is not None:
                    pull.run(engine, hands, source, self._local)
                    with self._lock:
                        self._pull = None
                    self._told()
        except TransportError as error:
            if error.reason == "failed":  # the line knows better why
                source.wait(line.VERDICT_SECONDS)
                source.rate()
            raise
        finally:
            source.close()

    def _engine_of_ours(self) -> Engine:
        self._engine = engine = self._opened(self._way.route, self._into.device)
        if engine.route != "tcp":
            engine.register(self._local.regions(self._into.device))
        return engine

    def _knock(self, engine: Engine, hands: Sequence[Lane], table: Table) -> None:
        """Open the session with reads that go nowhere near the target, one from each thread that will read.

        A source that has just stopped makes the library wait for a minute here, and everybody may leave meanwhile.
        """
        length = min(_KNOCK, table.places[0].length)
        with scratch.room(engine, self._into.device, _KNOCK) as address:
            for lane in hands:
                reads = Reads(engine, self._way.session, [lane], self.cut)
                step = Step(Span(0, length), [Move(address, table.places[0].address, length)])
                try:
                    reads.add(step)
                    while reads.steps and not self._stopped.is_set():
                        reads.look(self._still_seconds)
                        deque(reads.finished(), maxlen=0)
                finally:
                    reads.drain()

    def _next(self, source: Line) -> Pull | None:
        """The next pull, when there is one; None when this is over. Raises TransportError when the source ends it."""
        while True:
            source.rate()
            with self._lock:
                if self._stopped.is_set():
                    return None
                if self._pulls:
                    self._pull = self._pulls.popleft()
                    return self._pull
            source.wait_or(self._wake)

    def cut(self) -> None:
        """Make reads from a source that has stopped fail; on TCP only: others end by the adapter's clocks."""
        if self._way.data_port:
            sockets.cut(self._ticket.host, self._way.data_port)
