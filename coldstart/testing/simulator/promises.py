"""What must hold in every run: the project's promises, looked at behind the machines' backs.

Decides what counts as a violation. It sees what no machine sees (contents, all processes, the
moments of faults) and changes nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from coldstart import effects
from coldstart.phases.states import STORAGE, Draining, Failed, Serving, State
from coldstart.phases.weigh import chosen
from coldstart.plan import GRACE
from coldstart.policies import MOST
from coldstart.source import Mode
from coldstart.testing.simulator.groups import waited
from coldstart.testing.simulator.scenario import Fault, Served, Violation
from coldstart.testing.simulator.store import DEADLINE, SHARD

if TYPE_CHECKING:
    from coldstart.testing.simulator.fleet import World
    from coldstart.testing.simulator.process import Process

WRONG = "never serve wrong weights"
HANG = "never hang"
WORSE = "never worse than storage"
DISTURB = "never disturb the source"
LATE = "never write late"
TELL = "always say what happened"
RECOVER = "no lasting harm"
ONCE = "one storage read"

CALLS = 4
"""Calls to the store, each up to its deadline, that may stand before or after the bytes of a start."""


ROUND_TRIP = 0.01
AT_THE_STORE = {
    Fault.PARTITION, Fault.LOSS, Fault.REPEAT, Fault.DELAY, Fault.OUTAGE, Fault.WIPE, Fault.FAILOVER,
}  # fmt: skip
"""Faults that make words to the store take their time."""


FORGETS = {Fault.FAILOVER, Fault.CLOCK}
"""Faults in which a store rightly loses letters: those since the replica, and those that grew old at once."""


class Promises:
    """The violations of one run, and what is counted on the way."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.violations: list[Violation] = []
        self.paths: Counter[str] = Counter()
        self.weighed: Counter[str] = Counter()
        self.wasted = 0
        self.cold_starts = 0
        self.served: dict[str, Served] = {}
        """By name; of first lives only."""

    def broken(self, promise: str, process: Process, what: str) -> None:
        """Note a violation."""
        self.violations.append(Violation(promise, self.world.heap.now, process.inbox, what))

    # ------------------------------------------------------------------------- while it goes on

    def ended(self, process: Process, before: State) -> None:
        """The joiner serves, has failed, or is gone."""
        state = process.state
        if isinstance(state, Serving):
            self._served(process, state)
        elif isinstance(state, Failed):
            self._failed(process, state)
        elif not isinstance(before, Serving | Draining):
            self.paths["left"] += 1

    def _served(self, process: Process, state: Serving) -> None:
        journey = state.journey
        self.cold_starts += 1
        origins = [origin for origin, _ in journey.origins]
        path = "storage" if origins == [STORAGE] else "mixed" if STORAGE in origins else "peer"
        self.paths[path] += 1
        self.wasted += len(journey.excluded)
        if journey.choice is not None:
            self.weighed[journey.choice.decision] += 1
        if process.first:
            at = self.world.heap.now - self.world.began
            self.served[process.name] = Served(at, process.calls, process.read_here)
        if not journey.complete:
            self.broken(WRONG, process, f"serves with {len(journey.verified)} of {journey.total} chunks verified")
        if process.memory != self.world.checkpoint.content:
            self.broken(WRONG, process, f"serves {process.memory}")
        if path == "mixed" and not self.world.scenario.partial:
            self.broken(TELL, process, "says that a peer gave what a whole load has written over")
        self.bounded(process)
        self.told(process, state)
        self.world.groups.served(process, state)

    def _failed(self, process: Process, state: Failed) -> None:
        self.cold_starts += 1
        self.paths["failed"] += 1
        if not process.storage_fault and not self.world.groups.excuses(process, state):
            self.broken(WORSE, process, f"failed although storage was sound: {state.reason}")
        self.bounded(process)

    def bounded(self, process: Process) -> None:
        """The start took no longer than storage, the budget, one chunk that was not whole when its source was
        left, and what somebody else is to answer for."""
        scenario, journey = self.world.scenario, process.state.journey
        limits = scenario.limits
        took = self.world.heap.now - process.began - process.frozen
        slowest = scenario.slowest_seconds
        if process.storage_fault:
            slowest = 2 * slowest + scenario.standstill
        if not scenario.partial:
            slowest *= 2  # what a source gave that failed later is written over
        words = CALLS * (ROUND_TRIP if AT_THE_STORE.isdisjoint(self.world.struck) else DEADLINE)
        again = scenario.chunk_bytes / limits.floor if limits.floor > 0 else 0.0
        bound = slowest + limits.patience + GRACE + again + journey.followed + words + process.excused
        bound += waited(journey.accord)
        if took > bound:
            self.broken(WORSE, process, f"took {took:.2f} s, {bound:.2f} s at most: {'; '.join(journey.detours)}")

    def told(self, process: Process, state: Serving) -> None:
        """Whoever was left is named, with the reason."""
        journey = state.journey
        for worker in journey.excluded:
            if not any(reason.startswith(f"{worker}: ") for reason in journey.detours):
                self.broken(TELL, process, f"left {worker} without a reason")

    def pulling(self, process: Process, effect: effects.Pull) -> None:
        """A pull is about to begin."""
        if effect.source.inbox in process.joining.claims.wronged:
            self.broken(WRONG, process, f"asks {effect.source.inbox} again, which gave it wrong bytes")
        movements = process.joining.movements
        for other in movements.values():
            if other.chunks & effect.chunks or self._twice(other.attempt, effect.attempt):
                self.broken(LATE, process, "a pull begins before the last one was quiet and in the same memory")
        if len(movements.keys() | {effect.attempt}) > MOST:
            self.broken(DISTURB, process, f"asks more than {MOST} sources at once")

    def _twice(self, going: int, asked: int) -> bool:
        """Whether both are the first source's pulls, or one source's that cannot grow."""
        return not self.world.scenario.growing if going == asked else min(going, asked) >= 0

    def lent(self, source: Process) -> None:
        """Somebody has begun to read from ``source``."""
        readers = len(source.lending.reading)
        if readers > source.lender.terms.slots:
            self.broken(DISTURB, source, f"{readers} joiners read from it")

    def lends(self, source: Process, chunk: int) -> None:
        """A chunk lands from ``source``."""
        if chunk not in source.state.journey.verified:
            self.broken(WRONG, source, f"lends chunk {chunk}, which it has not verified")

    # ------------------------------------------------------------------------------ at the end

    def settled(self, newcomers: list[Process]) -> None:
        """All faults are over and everybody has had time: what is left of them?"""
        world = self.world
        advertised = {advert.inbox for advert in world.store.ledger.adverts(SHARD)}
        for process in world.processes.values():
            if not process.alive:
                continue
            if not process.ended:
                self.broken(HANG, process, f"still in {type(process.state).__name__}")
            elif isinstance(process.state, Serving):
                self._keeps(process, process.inbox in advertised)
        if Fault.CLOCK not in world.struck:
            for advert in world.store.ledger.adverts(SHARD):
                if advert.used:
                    self.broken(RECOVER, world.named(advert.inbox), f"{advert.used} slots taken, nobody reads")
        for advert in world.store.ledger.adverts(SHARD):
            owner = world.named(advert.inbox)
            if advert.struck and owner.lends and owner.memory == world.checkpoint.content:
                self.broken(RECOVER, owner, "sound, but struck for good")
        for process in newcomers:
            self._received(process)
        if not world.struck and world.loaders > 1:
            self.broken(ONCE, newcomers[0], f"{world.loaders} workers read storage for everybody")

    def _keeps(self, process: Process, advertised: bool) -> None:
        changed = process.inbox in self.world.altered
        if process.memory != self.world.checkpoint.content and not changed:
            self.broken(LATE, process, f"its memory became {process.memory} while serving")
        if process.lender.mode is Mode.WITHHELD and process.sound and not changed:
            self.broken(RECOVER, process, f"withholds what is right: {process.lender.why}")
        if self.world.scenario.scrub and process.lender.mode is Mode.OPEN and not process.sound:
            self.broken(RECOVER, process, "lends what is wrong, and has not noticed")
        if process.lender.grants or process.lending.reading:
            self.broken(RECOVER, process, "a grant is open and nobody needs it")
        lost = process.sent_here - process.read_here
        if lost > 0 and FORGETS.isdisjoint(self.world.struck):
            self.broken(RECOVER, process, f"{lost} letters were put into its inbox and never read")
        if process.lender.mode is Mode.OPEN and not advertised:
            self.broken(RECOVER, process, "serves and is not advertised")

    def _received(self, process: Process) -> None:
        """A worker that came after all faults is received as if there had been none."""
        journey = process.state.journey
        by_choice = chosen(journey)
        for reason in journey.detours:
            worker, _, why = reason.partition(": ")
            if by_choice and why == by_choice:
                continue
            if any(other.name == worker and other.lends for other in self.world.processes.values() if other.sound):
                self.broken(RECOVER, process, f"a source that lives and lends was no use: {reason}")
        altered = {inbox.partition(".")[0] for inbox in self.world.altered}
        wrong = sum(reason.partition(":")[0] in altered for reason in journey.detours)
        sources = [other for other in self.world.lenders if other.since < process.began and other.name not in altered]
        scenario = self.world.scenario
        enough = 1 if not scenario.transport.abortable else scenario.limits.sources
        if sources and isinstance(process.state, Serving) and wrong < enough and not by_choice:
            origins = [origin for origin, _ in journey.origins]
            if STORAGE in origins:
                self.broken(RECOVER, process, f"read storage, with {len(sources)} sources: {journey.detours}")
