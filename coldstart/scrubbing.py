"""How often a source digests its own weights anew, though nobody doubts them: its scrubbing, as storage calls it.

Decides the pace of one pass after the other, chunk by chunk, so that a change that nobody announced is found in
bounded time and costs next to nothing: a turn comes when its share of a pass is over, and never before the time
that the last one took is a small enough share of the time since. Pure; ``source.py`` keeps the clock and
``inspecting.py`` looks.
"""

from __future__ import annotations

import msgspec

from coldstart.plan import Chunks

LOOK_SECONDS = 2.0
"""Where tensors lie and who wrote to them is looked at so often, also while no chunk is due: it reads no weights."""

MISSES = 3
"""Turns in a row that may fail before weights that cannot be digested count as wrong."""


class Pace(msgspec.Struct, frozen=True):
    """How much scrubbing there is.

    Args:
        seconds: one pass over all chunks takes so long, or longer; 0: never.
        share: most of one core's time that turns may take, from 0 to 1.
        chunks: of the weights.
        at_once: chunks that one turn digests at most, where that costs about what one costs.
    """

    seconds: float = 0.0
    share: float = 0.005
    chunks: int = 1
    at_once: int = 1

    @property
    def each(self) -> float:
        """Seconds from one chunk to the next, where cost allows it."""
        return self.seconds / max(self.chunks, 1)

    def pause(self, cost: float) -> float:
        """Seconds until the next turn, after one that took ``cost`` seconds of a core; at most those of a pass."""
        return max(min(LOOK_SECONDS, self.each), min(cost / self.share, self.seconds))


class Pass(msgspec.Struct, frozen=True):
    """Where a pass stands: the next chunk, when it is due (monotonic seconds), and turns missed in a row."""

    chunk: int = 0
    due: float = 0.0
    missed: int = 0

    def wanted(self, pace: Pace, at: float) -> Chunks:
        """The chunks that are due now: none, or those from the next one on, up to the end of the pass."""
        if at < self.due:
            return Chunks()
        late = int((at - self.due) / pace.each) if pace.each > 0 else 0
        return Chunks.of(range(self.chunk, min(self.chunk + min(late + 1, pace.at_once), pace.chunks)))

    def after(self, pace: Pace, chunks: Chunks, at: float) -> Pass:
        """As it stands once a turn that digested ``chunks`` has found everything right."""
        if not chunks:
            return Pass(self.chunk, self.due)
        return Pass((self.chunk + len(chunks)) % max(pace.chunks, 1), at + pace.each)

    def after_miss(self) -> Pass:
        """As it stands once a turn has failed: the same chunk again."""
        return Pass(self.chunk, self.due, self.missed + 1)
