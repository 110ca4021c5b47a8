"""The journal of a cold start on the bus: what its machines went through, for operators.

Decides when lines are written: behind the cold start, never in its way, and as few calls as possible. What a line
says is decided in ``chronicle``. While the bus is down lines are kept, as many as there is room for, and written when
it is back: a line that comes twice has the same number and counts once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import anyio
import msgspec

from coldstart.chronicle.lent import SourceNotes
from coldstart.chronicle.lines import BUILD, AnyLine, Ended, Entered, Header, Lent, pack, words
from coldstart.chronicle.noting import JoinerNotes
from coldstart.errors import BusError, in_a_line
from coldstart.layout import Layout
from coldstart.phases.states import Phase, State
from coldstart.ports import Bus
from coldstart.runner import Entry
from coldstart.source import Source

LATER_SECONDS = 0.05
"""The cold start has the event loop for itself for so long when it has just ended."""

GATHER_SECONDS = 2.0
"""Lines of so long are written together; but at once when the cold start has ended."""

LENT_SECONDS = 10.0
"""What was lent can wait longer: the joiner tells of it, too."""

AGAIN_SECONDS = 5.0
"""After a call that failed the next one waits so long."""

UNBUILT = "unbuilt"
"""Where starts are written down that failed before anybody knew of which weights they would be."""

UNBUILT_SECONDS = 1.0
"""What a start that has failed waits for that: its error is said in any case."""

KEPT = 256
"""Lines that wait to be written, at most; further ones are dropped and counted."""


class Journal:
    """Told of each step of a worker's machines (:meth:`joiner`, :meth:`source`); writes from :meth:`run`.

    Args:
        header: of which cold start the lines are.
        layout: of the carried tensors.
        began: monotonic seconds at which the cold start began.
        refused: what was not believed so far, by reason, where the fleet has keys.
    """

    def __init__(
        self,
        bus: Bus,
        header: Header,
        layout: Layout,
        began: float,
        refused: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._bus, self._header, self._began = bus, header, began
        self._joiner_notes, self._source_notes = JoinerNotes(layout, began), SourceNotes(began)
        self._refused = refused
        self._lines: list[tuple[int, AnyLine]] = []
        self._number = 0
        self._due = math.inf
        self._closing = False
        self._changed = anyio.Event()
        self.dropped = 0

    def joiner(self, entry: Entry[State]) -> None:
        """Take a step of the joiner's machine in."""
        self._add(self._joiner_notes(entry), entry.at)

    def source(self, entry: Entry[Source]) -> None:
        """Take a step of the source's machine in."""
        self._add(self._source_notes(entry), entry.at)

    async def run(self) -> None:
        """Write until cancelled, what comes in a moment together: each call is a round trip, for the store too."""
        while True:
            await self._until_due()
            lines, self._due = tuple(self._lines), math.inf
            sent = anyio.current_time() - self._began
            try:
                await self._bus.record(self._header.shard, list(pack(self._header, lines, sent)))
            except BusError:
                if self._closing:
                    self._lines.clear()
                self._due = min(self._due, anyio.current_time() + AGAIN_SECONDS)
            else:
                del self._lines[: len(lines)]
            self._wake()

    async def written(self) -> None:
        """Wait until everything has been written, or cannot be: the worker is about to end."""
        self._closing = True
        while self._lines:
            self._due = -math.inf
            self._wake()
            await self._changed.wait()

    async def _until_due(self) -> None:
        while not self._lines or self._due > anyio.current_time():
            changed = self._changed
            with anyio.move_on_at(self._due):
                await changed.wait()

    def _add(self, lines: Sequence[AnyLine], at: float) -> None:
        for line in lines:
            if isinstance(line, Ended):
                line = msgspec.structs.replace(line, refused=dict(self._refused()))
            self._number += 1
            if len(self._lines) >= KEPT:
                self.dropped += 1
                continue
            self._lines.append((self._number, line))
            due = _due(line, at)
            if due < self._due:
                self._due = due
                self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


async def tell_unbuilt(bus: Bus, start: str, worker: str, error: Exception, seconds: float) -> None:
    """Write down that a start has failed, ``seconds`` after it began, with its skeleton; never raises, nor takes long.

    Args:
        start: the worker's incarnation.
    """
    header = Header(start=start, worker=worker, shard=UNBUILT)
    failed = Phase.FAILED.value
    lines = (
        Entered(at=seconds, phase=failed, state=failed),
        Ended(at=seconds, phase=failed, total=0, failure=BUILD, reason=words(in_a_line(error))),
    )
    with anyio.move_on_after(UNBUILT_SECONDS), suppress(BusError):
        await bus.record(UNBUILT, list(pack(header, list(enumerate(lines, 1)), seconds)))


def _due(line: AnyLine, at: float) -> float:
    match line:
        case Ended():
            return at + LATER_SECONDS
        case Lent():
            return at + LENT_SECONDS
        case _:
            return at + GATHER_SECONDS
