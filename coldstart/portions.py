"""How much of what is missing is asked of each source at a time, and when it is fetched again from another one.

A joiner with several sources asks each for a portion of what is left, the smaller the less is left, so that whoever
is quicker comes back for more and all end together. It is guided self-scheduling (C. D. Polychronopoulos, D. J. Kuck,
"Guided Self-Scheduling", IEEE Transactions on Computers C-36, 1987) with smaller portions, because rates differ more
between links than between processors. What one source was asked for is nobody else's until its pull has ended: two
writers of one place could leave there what neither has sent. So the end game is not to ask twice, but to end a pull,
once it is quiet, for one that is much quicker. Pure arithmetic: it must not know states, clocks or transports.
"""

from __future__ import annotations

from typing import Final

import msgspec

from coldstart.plan import Chunks

LEAST: Final = 2
"""Chunks that may always be on their way from a source: one lands while the next one is asked for."""
SHARE: Final = 4
"""Of what is left, each source is asked for this part of its even share."""

OUTRUN: Final = "outrun"
"""Why a source is left in the end game."""
NARROW: Final = "no quicker than fewer sources"
"""Why a further source is left where all share a bottleneck."""
SETTLE: Final = 0.25
"""Seconds that ending one pull and beginning another may take, digests of what has landed included."""
TIMES: Final = 2.0
"""A pull goes on unless it would take so many times as long as fetching the same again: rates are only estimates, and
ending it throws away what has landed of chunks that are not complete."""
JUDGED: Final = 0.5
"""Seconds that a source is given before its rate says anything."""


class Brought(msgspec.Struct, frozen=True):
    """Bytes that have come from one source since a moment; ``seen`` is when some of them came last."""

    since: float
    seen: float
    nbytes: int = 0

    @classmethod
    def begun(cls, at: float) -> Brought:
        return cls(at, at)

    def more(self, nbytes: int, at: float) -> Brought:
        """After ``nbytes`` more."""
        return Brought(self.since, at, self.nbytes + nbytes)

    def rate(self, at: float) -> float:
        """Bytes per second until ``at``; 0 as long as it is too early to tell."""
        return self.nbytes / (at - self.since) if at - self.since >= JUDGED else 0.0

    @property
    def rate_while_it_came(self) -> float:
        """Bytes per second until some came last; 0 as long as nothing did."""
        return self.nbytes / (self.seen - self.since) if self.seen > self.since else 0.0


def portion(offered: Chunks, under_way: int, left: int, sources: int) -> Chunks:
    """What a source is asked for now, of what is ``offered`` there; nothing while enough is on its way.

    Args:
        under_way: chunks that it was asked for and that are not verified.
        left: chunks that are missing, whoever was asked for them.
        sources: from how many the joiner receives.
    """
    allowed = max(LEAST, -(-left // (SHARE * sources)))
    room = allowed - under_way
    if len(offered) <= room:
        return offered
    return offered.lowest(room) if 2 * room >= allowed else Chunks()


def outrun(owed: int, behind: float, ahead: float) -> bool:
    """Whether ``owed`` bytes are better fetched again from a source that has nothing to do.

    Args:
        behind: bytes per second of the source that was asked for them; 0: not known.
        ahead: of the one that has nothing to do; 0: not known.
    """
    return behind > 0 and ahead > 0 and owed / behind > SETTLE + TIMES * owed / ahead
