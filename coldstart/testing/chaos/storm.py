"""Plays a storm: a small rollout, its faults, a time to settle, and newcomers after it.

Decides who comes when and when it is over. The same seed gives the same :attr:`Outcome.trace_hash`
in every process on a machine: all luck is of the seed, time is virtual, and worker threads are heard
in order. Two things are left to chance, and neither is in the trace: the order in which the tasks of
one scope are cancelled (anyio keeps them in a set), and wall-clock times in adverts and journal. How
many digests run at a time depends on the number of cores (``coldstart.landing.WORKERS``), and with it
the order of digests within one moment.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import traceback
import warnings
from collections import Counter
from random import Random

import anyio
from anyio.abc import TaskGroup

from coldstart.bus.memory import MemoryBus
from coldstart.phases.states import Draining, Failed, Gone, Serving, State
from coldstart.plan import Limits
from coldstart.ports import Transport
from coldstart.runner import Entry
from coldstart.source import Source
from coldstart.testing.chaos.faults import Faults
from coldstart.testing.chaos.line import OPERATIONS, Line, Trouble
from coldstart.testing.chaos.outcome import Outcome
from coldstart.testing.chaos.promises import BROKE, Promises
from coldstart.testing.chaos.subject import Moody, Subject, Switched
from coldstart.testing.harness import FLOOR, STORAGE_SECONDS, FakeStorage, Fleet, Wrap, fleet
from coldstart.testing.virtual_time import START, OrderlyLoop

SPREAD = 30.0
"""The rollout's workers start within so many seconds."""
TROUBLE = 40.0
"""Faults begin within so many seconds, and last up to a quarter of them."""
SETTLING = 60.0
"""After this nothing of a fault may be left: slots, grants and leases have ended by themselves."""
LONGEST = 200.0
"""Any cold start has ended by then."""
LIMITS = Limits(floor=FLOOR, whole_load=40.0)
SOON = 1.0
"""After this, where nothing is wrong, the store and all workers agree."""
HOP = 0.1
"""The way to the store, or back, takes some workers up to this."""
CALM = 0.1
"""So many of all storms are none."""
NEWCOMERS = 3
ENDS = (Serving, Draining, Failed, Gone)


class World:
    """Everything in one storm."""

    def __init__(self, seed: int, transport: Wrap, *, journal: bool) -> None:
        self.seed, self.luck = seed, Random(seed)
        self.transport = transport
        self.workers: Fleet
        self.tasks: TaskGroup
        """Of all that goes on until the faults are over."""
        self.faults = Faults(self)
        self.subjects: dict[str, Subject] = {}
        """By inbox; all that ever were."""
        self.struck: Counter[str] = Counter()
        self.promises = Promises(self)
        self.journal: list[str] | None = [] if journal else None
        self.now = 0.0
        self.steps = 0
        self._trace = hashlib.blake2b(digest_size=16)

    @property
    def living(self) -> list[Subject]:
        return [subject for subject in self.subjects.values() if subject.alive]

    # ------------------------------------------------------------------------------- the story

    async def play(self) -> None:
        """From the first start to the last drain."""
        async with fleet(LIMITS, self.seed) as self.workers:
            self.workers.watch = self._watch
            calm = self.luck.random() < CALM
            await self._rage(calm)
            self.remark("all faults are over")
            for subject in self.living:
                subject.mend()
            await self._ended()
            await anyio.sleep(SETTLING)
            self.promises.settled()
            if calm:
                self.promises.undisturbed()
            await self._welcome(1)
            await self._welcome(NEWCOMERS)
            self.promises.settled()
            await self._leave()

    async def _rage(self, calm: bool) -> None:
        luck = self.luck
        async with anyio.create_task_group() as self.tasks:
            for number in range(luck.randint(4, 10)):
                moment = luck.uniform(0, SPREAD) * luck.choice((0.0, 1.0))
                self.tasks.start_soon(self._arrive, f"w{number}", moment, calm)
            for _ in range(0 if calm else luck.randint(4, 16)):
                kind, moment = luck.choice(tuple(self.faults.kinds)), luck.uniform(0, TROUBLE)
                seconds = luck.choice((0.1, 1.0, 3.0, 8.0)) * luck.uniform(0.5, 1.2)
                self.tasks.start_soon(self.faults.strike, kind, moment, seconds)

    async def _arrive(self, name: str, moment: float, sound: bool) -> None:
        await anyio.sleep(moment)
        self.launch(name, sound=sound)

    async def _ended(self) -> None:
        """Every cold start has ended, or should have long ago."""
        with anyio.move_on_after(LONGEST):
            for subject in self.living:
                await subject.member.reached(*ENDS)

    async def _welcome(self, count: int) -> None:
        """Newcomers come after all faults, all at once."""
        lenders = [subject for subject in self.living if subject.lends]
        newcomers = [self.launch(f"n{len(self.subjects)}", sound=True) for _ in range(count)]
        await self._ended()
        for newcomer in newcomers:
            self.promises.received(newcomer, lenders)
        await anyio.sleep(SOON)

    async def _leave(self) -> None:
        """Everybody leaves in good order."""
        async with anyio.create_task_group() as tasks:
            for subject in self.living:
                tasks.start_soon(self._drain, subject)
        self.promises.left()

    async def _drain(self, subject: Subject) -> None:
        with anyio.move_on_after(LIMITS.drain + SOON):
            await subject.member.drain()

    def launch(self, name: str, *, sound: bool = False) -> Subject:
        """Start a worker; unless it is to be ``sound``, not every one is well made."""
        luck, workers = self.luck, self.workers
        quick = sound or luck.random() < 0.8
        storage = FakeStorage(
            workers.weights(),
            STORAGE_SECONDS if quick else luck.uniform(2, STORAGE_SECONDS),
            partial=sound or luck.random() < 0.85,
        )
        subject = Subject(anyio.current_time() - START, storage, Moody())
        subject.late, subject.hasty = not sound and luck.random() < 0.3, luck.random() < 0.6
        coordinated = sound or luck.random() < 0.97
        hop = HOP * luck.choice((0.0, 1.0))
        usual = {name: Trouble(luck.uniform(0, hop), luck.uniform(0, hop)) for name in OPERATIONS}
        subject.line = Line(MemoryBus(workers.store), usual) if coordinated else None

        def wrapped(inner: Transport) -> Transport:
            subject.switched = Switched(self.transport(inner), luck, late=subject.late)
            return subject.switched

        subject.member = workers.start(
            name,
            storage=storage,
            transport=wrapped,
            bus=subject.line,
            no_bus="" if coordinated else "coordination is switched off",
            slots=luck.randint(1, 2),
            digester=subject.digester,
            self_check=subject.self_check,
            replace_memory=subject.replace_memory,
            peer_seconds=1.0 if sound else luck.choice((0.2, 1.0, 3.0, 8.0, 60.0)),
        )
        self.subjects[subject.member.inbox] = subject
        self.remark(f"starts, {'late' if subject.late else 'abortable'}", subject)
        if not sound and luck.random() < 0.35:
            self.tasks.start_soon(self.faults.wrap, subject, luck.uniform(0, TROUBLE / 2))
        return subject

    # ------------------------------------------------------------------------------ what is seen

    def _watch(self, inbox: str, entry: Entry[State] | Entry[Source]) -> None:
        self.now, self.steps = entry.at - START, self.steps + 1
        before, after, event = _name(entry.before), _name(entry.after), type(entry.event).__name__
        self._trace.update(f"{entry.at!r} {inbox} {event} {after}\n".encode())
        if self.journal is not None:
            change = before if before == after else f"{before} -> {after}"
            self.journal.append(f"{self.now:10.4f} {inbox:<6} {change:<28} {entry.event}")
        subject = self.subjects[inbox]
        if isinstance(entry.after, Source):
            self.promises.lent(subject, entry)
        else:
            self.promises.joined(subject, entry)

    def remark(self, what: str, subject: Subject | None = None) -> None:
        """Something that befell the fleet."""
        if self.journal is not None:
            who = subject.member.inbox if subject else "*"
            self.journal.append(f"{anyio.current_time() - START:10.4f} {who:<6} * {what}")

    def outcome(self) -> Outcome:
        """What has come of it."""
        return Outcome(
            seed=self.seed,
            trace_hash=self._trace.hexdigest(),
            steps=self.steps,
            virtual_seconds=self.now,
            paths=dict(sorted(self.promises.paths.items())),
            faults=dict(sorted(self.struck.items())),
            violations=tuple(self.promises.violations),
            journal=tuple(self.journal or ()),
        )


def storm(seed: int, *, transport: Wrap = lambda inner: inner, journal: bool = False) -> Outcome:
    """Play the storm of ``seed``; not from within an event loop.

    Args:
        transport: puts a transport of one's own around, or in place of, each worker's loopback. It
            must need nothing but the event loop: sockets stand still in virtual time.
        journal: keep every step in words.
    """
    world = World(seed, transport, journal=journal)

    def unheard(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        world.promises.broken(BROKE, "loop", f"{context['message']}: {context.get('exception')!r}")

    async def played() -> None:
        asyncio.get_running_loop().set_exception_handler(unheard)
        try:
            await world.play()
        except Exception:
            world.promises.broken(BROKE, "fleet", traceback.format_exc())
        gc.collect()  # what nobody has waited for tells so when it is collected

    gc.freeze()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        anyio.run(played, backend="asyncio", backend_options={"loop_factory": OrderlyLoop})
        gc.collect()
    gc.unfreeze()
    for warning in caught:
        world.promises.broken(BROKE, "process", str(warning.message))
    return world.outcome()


def _name(state: State | Source) -> str:
    return state.mode.value if isinstance(state, Source) else type(state).__name__
