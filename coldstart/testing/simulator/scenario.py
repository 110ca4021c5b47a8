"""What is simulated, in figures: the fleet, its links and storage, its policies, and the faults.

Decides nothing; it is data. The defaults are a small model on quick links, so that a quiet run is short.
``fleet.py`` plays a scenario with a seed; ``faults.py`` draws the faults.
"""

from __future__ import annotations

import math
from enum import StrEnum
from random import Random
from typing import Protocol

import msgspec

from coldstart.plan import Limits
from coldstart.policies import AtOnce, Prefer, source_bound


class Fault(StrEnum):
    """Kinds of trouble; each strikes at a random moment, lasts a while, and is over before the end."""

    CRASH = "crash"
    """A worker is killed, and started anew a while later."""
    DRAIN = "drain"
    """A worker is asked to leave, and started anew later."""
    FREEZE = "freeze"
    """A worker stands still, as under SIGSTOP, and goes on later."""
    VANISH = "vanish"
    """A worker's host is gone at once: nothing closes its connections."""
    SLOW = "slow"
    """A worker lends at a hundredth of its rate."""
    CUT = "cut"
    """No data passes between a worker and the others; the store is still reached."""
    PARTITION = "partition"
    """A worker's words to the store, or the store's answers to it, or both, are lost."""
    LOSS = "loss"
    """One in ten words to or from the store is lost."""
    REPEAT = "repeat"
    """One in ten words to the store is acted on twice, the second time late."""
    DELAY = "delay"
    """Words to and from the store take up to a second, each its own time, so they overtake each other."""
    OUTAGE = "outage"
    """The store is down and comes back with its memory."""
    WIPE = "wipe"
    """The store is started anew, empty."""
    FAILOVER = "failover"
    """The store comes back as it was some seconds ago: what it acknowledged since is lost."""
    CLOCK = "clock"
    """The store's clock jumps by up to an hour, forward or back."""
    CORRUPT = "corrupt"
    """Every chunk that a worker lends arrives with a flipped bit."""
    ROT = "rot"
    """A chunk in the memory of a serving worker changes."""
    CHANGE = "change"
    """A host changes its weights in place, and in half the cases restores them."""
    LATE = "late"
    """Pulls of a worker cannot be aborted: it writes on after it was abandoned."""
    STORAGE = "storage"
    """A worker's storage reads fail, stand still, or are slow."""


class Transport(Protocol):
    """How bytes move in the simulation: the place for a transport, or a network, of one's own."""

    @property
    def abortable(self) -> bool:
        """See :class:`coldstart.ports.Traits`."""
        ...

    def seconds(self, nbytes: int, readers: int, luck: Random) -> float:
        """How long ``nbytes`` take, from a source that ``readers`` joiners read from at this moment."""
        ...


class Link(msgspec.Struct, frozen=True):
    """A source's link, shared evenly by its readers; ``bytes_per_second`` for all of them together."""

    bytes_per_second: float = 1e9
    abortable: bool = True

    def seconds(self, nbytes: int, readers: int, luck: Random) -> float:
        """Between 0.9 and 1.1 times its share."""
        return nbytes * readers / self.bytes_per_second * (0.9 + 0.2 * luck.random())


class Fabric(msgspec.Struct, frozen=True):
    """Links that everybody shares, in bytes per second: see ``network.py``.

    Args:
        egress, ingress: each worker's way out and way in.
        storage: all storage reads together; one of them gets at most :attr:`Scenario.storage`.
        even: shared evenly instead of fairly: no quicker, and much less to work out in large fleets.
    """

    egress: float
    ingress: float
    storage: float = math.inf
    even: bool = False


class Scenario(msgspec.Struct, frozen=True):
    """One fleet and its world. Times in seconds, sizes in bytes.

    Args:
        workers: of the rollout; more come after the faults.
        holders: workers that serve before the rollout begins.
        chunks, chunk_bytes: of the model.
        spread: the rollout's workers start within this, one of them at once.
        storage: bytes per second of a storage read.
        transport: how bytes move between workers.
        fabric: links shared by the whole fleet, instead of the transport's and storage's own times.
        slots: joiners per source.
        limits: the joiner's policy; a floor of ``storage`` makes "never worse than storage" exact.
        partial: storage can be read chunk by chunk.
        faults: kinds to draw from; none for a quiet run.
        trouble: faults strike within this time, ``strikes`` of them.
        prefer: the joiners' choice among sources; see ``coldstart.policies``. Its ``rates`` are empty here.
        at_once: from how many sources joiners would receive; see there.
        link_known, storage_known: what workers remember of links and of storage, in bytes per second; 0: nothing,
            so that no wait is estimated.
        group_size: ranks that start together and act as one; 1 for workers that have nothing to do with each other.
        scrub: a source digests its weights anew in so many seconds; 0: never, and what rots is found by joiners.
        growing: pulls can be asked for more while they are under way; see :class:`coldstart.ports.Growing`.
    """

    workers: int = 64
    holders: int = 0
    chunks: int = 2
    chunk_bytes: int = 1 << 24
    spread: float = 4.0
    storage: float = 2e8
    transport: Transport = Link()
    fabric: Fabric | None = None
    slots: int = 2
    limits: Limits = Limits(floor=2e8, follow=60.0)
    partial: bool = True
    faults: tuple[Fault, ...] = ()
    trouble: float = 30.0
    strikes: int = 16
    group_size: int = 1
    scrub: float = 0.0
    prefer: Prefer | None = None
    at_once: AtOnce = source_bound
    link_known: float = 0.0
    storage_known: float = 0.0
    growing: bool = True

    @property
    def standstill(self) -> float:
        """How long a storage read that stands still is waited for, until it is quiet."""
        limits = self.limits
        return (limits.storage_stall if self.partial else limits.whole_load) + limits.quiet

    @property
    def storage_seconds(self) -> float:
        """What a storage read takes alone."""
        return self.chunks * self.chunk_bytes / self.storage

    @property
    def slowest_seconds(self) -> float:
        """What the bytes take at worst: from sources at the floor, or from storage when all workers read at once."""
        shared = math.inf if self.fabric is None else self.fabric.storage / (self.workers + self.holders)
        return self.chunks * self.chunk_bytes / min(self.storage, self.limits.floor or math.inf, shared)


def troubled(workers: int, faults: tuple[Fault, ...] = tuple(Fault)) -> Scenario:
    """A fleet with a model that takes long enough for faults to strike in the middle of everything."""
    return Scenario(workers=workers, chunks=6, chunk_bytes=1 << 28, spread=20.0, faults=faults)


class Violation(msgspec.Struct, frozen=True):
    """A promise that was broken: which, when, by whom, and how."""

    promise: str
    at: float
    worker: str
    what: str


class Served(msgspec.Struct, frozen=True):
    """When a worker's first life began to serve, in seconds since the rollout began, and what it had asked of the
    store until then: calls, and letters read from its inbox."""

    at: float
    calls: int
    letters: int


class Outcome(msgspec.Struct, frozen=True):
    """One run.

    ``paths`` counts cold starts by where their bytes came from or how they ended, ``faults`` the
    faults that struck by kind, ``wasted`` the attempts at sources that came to nothing. ``served`` has
    the rollout's workers whose first life came to serve; ``weighed`` counts cold starts by the last estimate's decision
    (see :class:`coldstart.estimate.Estimate`); ``holders_reads`` are the ``storage_reads`` from before the rollout;
    ``rollout_calls`` are all calls to the store,
    the sources' included, from the rollout's beginning until everybody's cold start had ended.
    """

    seed: int
    trace_hash: str
    cold_starts: int
    events: int
    virtual_seconds: float
    storage_reads: int
    wasted: int
    paths: dict[str, int]
    faults: dict[str, int]
    violations: tuple[Violation, ...] = ()
    journal: tuple[str, ...] = ()
    served: dict[str, Served] = {}
    rollout_calls: int = 0
    holders_reads: int = 0
    weighed: dict[str, int] = {}
