"""Where a worker stands in the fleet: its shard, its names, and its way to the others.

What both of a worker's hands (``joining.py``, ``lending.py``) and its dealings with the bus
(``claiming.py``, ``truths.py``) have in common. Decides nothing.
"""

from __future__ import annotations

from random import Random
from secrets import SystemRandom

import msgspec

from coldstart.identity import Shard
from coldstart.ports import Bus


class Worker(msgspec.Struct, frozen=True):
    """Who we are: a name that may return, and an incarnation that never does."""

    name: str
    incarnation: str

    @property
    def inbox(self) -> str:
        return f"{self.name}.{self.incarnation}"


class Station(msgspec.Struct, frozen=True):
    """One worker in the fleet of its shard.

    Args:
        lineage: key of the layout and the digest algorithm (:func:`coldstart.identity.lineage`);
            only workers of one lineage exchange weights.
        bus: None when there is no coordination; ``no_bus`` says why.
        chance: where nonces, and what peers must return plus one, are drawn from; a test may seed it.
    """

    shard: Shard
    lineage: str
    worker: Worker
    bus: Bus | None
    no_bus: str = ""
    chance: Random = SystemRandom()

    @property
    def key(self) -> str:
        """The shard's key on the bus."""
        return self.shard.key

    def nonce(self) -> str:
        """A name that nothing else on the bus has."""
        return f"{self.chance.getrandbits(64):016x}"

    def number(self) -> int:
        """A number that only those who heard it know."""
        return self.chance.getrandbits(62)
