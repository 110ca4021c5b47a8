"""Plays a scenario: a rollout, its faults, and the newcomers after them.

    from coldstart.testing.simulator import Fault, Scenario, simulate

    outcome = simulate(Scenario(workers=64, faults=tuple(Fault)), seed=7)
    assert not outcome.violations, outcome.journal

Decides when workers start and when the run is over. The same seed gives the same
:attr:`Outcome.trace_hash` in every process. The machines are the real ones; what they ask for is
performed by ``joiner.py`` and ``source.py``.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from coldstart.events import Event
from coldstart.scrubbing import Pace
from coldstart.source import Terms
from coldstart.testing.simulator.faults import Faults
from coldstart.testing.simulator.groups import CRASH_LOOP, JITTER, Groups
from coldstart.testing.simulator.heap import Heap
from coldstart.testing.simulator.memory import Checkpoint
from coldstart.testing.simulator.network import Network
from coldstart.testing.simulator.process import Process
from coldstart.testing.simulator.promises import Promises
from coldstart.testing.simulator.scenario import Fault, Outcome, Scenario
from coldstart.testing.simulator.store import LINEAGE, Store

NEWCOMERS = 4
LOOK = 0.25
"""Virtual seconds between two looks at whether everybody has ended."""


class World:
    """Everything in one run."""

    def __init__(self, scenario: Scenario, seed: int, worker: type[Process], *, journal: bool) -> None:
        self.scenario, self.seed = scenario, seed
        self.worker = worker
        self.heap = Heap(seed)
        self.store = Store(self.heap)
        self.network = _network(self.heap, scenario)
        self.checkpoint = Checkpoint(scenario.chunks)
        scrub = Pace(scenario.scrub, chunks=scenario.chunks)
        self.terms = Terms(LINEAGE, scenario.slots, ("sim",), drain=scenario.limits.drain, scrub=scrub)
        self.promises = Promises(self)
        self.groups = Groups(self)
        self.processes: dict[str, Process] = {}
        """By inbox; all that ever were."""
        self.began = 0.0
        """When the rollout did."""
        self.storage_reads = self.loaders = self.rollout_calls = 0
        self.holders_reads = 0
        """Of storage, before the rollout began."""
        self.struck: Counter[Fault] = Counter()
        self.altered: list[str] = []
        """Inboxes of those whose weights are no longer the checkpoint's."""
        self.journal: list[str] | None = [] if journal else None
        self._lives: Counter[str] = Counter()

    def play(self) -> Outcome:
        """From the first start to the last look."""
        scenario, heap = self.scenario, self.heap
        for number in range(scenario.holders):
            self.launch(f"h{number}")
            self._until_ended()
        self.began, calls = heap.now, self._calls()
        self.holders_reads = self.storage_reads
        for number, moment in enumerate(self._moments()):
            heap.after(moment, self._begin, f"w{number}")
        Faults(self).schedule()
        heap.run(heap.now + max(scenario.spread, scenario.trouble if scenario.faults else 0.0))
        self._until_ended()
        self.rollout_calls = self._calls() - calls
        if scenario.faults:
            heap.run(heap.now + self.settling)
        newcomers = []
        for group in range(NEWCOMERS if scenario.faults else 1):
            first = group * scenario.group_size
            newcomers += [self.launch(f"n{number}") for number in range(first, first + scenario.group_size)]
            self._until_ended()
        heap.run(heap.now + LOOK)
        self.promises.settled(newcomers)
        return self._outcome()

    def _begin(self, name: str) -> None:
        """A worker of the rollout starts, unless its group was started anew before its turn."""
        if name not in self._lives:
            self.launch(name)

    def _moments(self) -> list[float]:
        """When the rollout's workers start; the ranks of a group nearly at one time."""
        scenario, luck = self.scenario, self.heap.luck
        if scenario.group_size == 1:
            return [scenario.spread * luck.random() if number else 0.0 for number in range(scenario.workers)]
        groups = -(-scenario.workers // scenario.group_size)
        starts = [scenario.spread * luck.random() if number else 0.0 for number in range(groups)]
        return [start + JITTER * luck.random() for start in starts for _ in range(scenario.group_size)]

    def _until_ended(self) -> None:
        """Go on until every cold start has ended, or should have long ago."""
        scenario = self.scenario
        bound = self.heap.now + 3 * (self.one_start - scenario.storage_seconds + scenario.slowest_seconds)
        while self.heap.now < bound and any(process.alive and not process.ended for process in self.processes.values()):
            self.heap.run(self.heap.now + LOOK)

    def _calls(self) -> int:
        """To the store, by everybody until now."""
        return sum(process.calls for process in self.processes.values())

    @property
    def settling(self) -> float:
        """After this nothing of a fault may be left: leases, grants and slots have ended by themselves."""
        terms = self.terms
        waiting = max(terms.lease, terms.grant, terms.accept) + terms.lease
        return waiting + self.one_start + self.scenario.standstill

    @property
    def one_start(self) -> float:
        """A newcomer has ended well within this."""
        limits = self.scenario.limits
        together = limits.follow + limits.presence if self.scenario.group_size > 1 else 0.0
        return self.scenario.storage_seconds + limits.patience + 10.0 + together

    def launch(self, name: str) -> Process:
        """Start a worker, or start it anew."""
        self._lives[name] += 1
        process = self.worker(self, name, len(self.processes), self._lives[name])
        self.processes[process.inbox] = process
        process.start()
        return process

    def restart(self, process: Process) -> None:
        """Start a dead worker anew, unless its group was meanwhile."""
        if process.group is None or not self.groups.back(process):
            self.launch(process.name)

    def replace(self, process: Process) -> None:
        """Start a worker anew that has left."""
        if process.alive:
            process.kill()
            self.launch(process.name)

    def failed(self, process: Process) -> None:
        """A cold start has failed: the process ends, and another one is started."""
        process.kill()
        if process.group is not None:
            self.groups.failed(process)
        else:
            self.heap.after(CRASH_LOOP, self.launch, process.name)

    def end(self) -> None:
        """Let go of each other, so that the memory is free without a search for cycles."""
        self.heap.clear()
        for process in self.processes.values():
            del process.joining, process.lending
        self.processes.clear()
        self.store.inboxes.clear()
        self.store.ledger.wipe()

    def named(self, inbox: str) -> Process:
        return self.processes[inbox]

    @property
    def lenders(self) -> list[Process]:
        """Those from which chunks can be had now."""
        return [process for process in self.processes.values() if process.lends]

    # ----------------------------------------------------------------------------------- journal

    def note(self, process: Process, event: Event, before: str, after: str) -> None:
        """One step of a machine."""
        if self.journal is not None:
            change = before if before == after else f"{before} -> {after}"
            self.journal.append(f"{self.heap.now:10.4f} {process.inbox:<6} {change:<28} {event}")

    def remark(self, what: str) -> None:
        """Something that befell the fleet."""
        if self.journal is not None:
            self.journal.append(f"{self.heap.now:10.4f} {'*':<6} {what}")

    def _outcome(self) -> Outcome:
        promises = self.promises
        return Outcome(
            seed=self.seed,
            trace_hash=self.heap.trace_hash,
            cold_starts=promises.cold_starts,
            events=self.heap.events,
            virtual_seconds=self.heap.now,
            storage_reads=self.storage_reads,
            holders_reads=self.holders_reads,
            wasted=promises.wasted,
            paths=dict(sorted(promises.paths.items())),
            faults={kind.value: count for kind, count in sorted(self.struck.items())},
            violations=tuple(promises.violations),
            journal=tuple(self.journal or ()),
            served={name: served for name, served in promises.served.items() if name.startswith("w")},
            rollout_calls=self.rollout_calls,
            weighed=dict(sorted(promises.weighed.items())),
        )


def _network(heap: Heap, scenario: Scenario) -> Network | None:
    fabric = scenario.fabric
    if fabric is None:
        return None
    return Network(
        heap,
        egress=fabric.egress,
        ingress=fabric.ingress,
        reader=scenario.storage,
        storage=fabric.storage,
        even=fabric.even,
    )


def simulate(
    scenario: Scenario, seed: int, *, worker: type[Process] = Process, journal: bool = False
) -> Outcome:
    """Play ``scenario`` with the luck of ``seed``.

    Args:
        worker: the process to play it with; planted bugs are subclasses of :class:`Process`.
        journal: keep every step in words.
    """
    with _uncollected():
        world = World(scenario, seed, worker, journal=journal)
        try:
            return world.play()
        finally:
            world.end()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector: a run makes much and drops it by itself, so that every look is in vain."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()
