"""Draws the faults of a run from its luck, lets them strike, and ends them.

Decides what befalls whom, when, and for how long; nothing about what should come of it, which is
for ``promises.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from coldstart import events
from coldstart.events import DrainRequested
from coldstart.phases.states import Serving
from coldstart.source import Mode
from coldstart.testing.simulator.scenario import Fault

if TYPE_CHECKING:
    from coldstart.testing.simulator.fleet import World
    from coldstart.testing.simulator.process import Process

SLOWNESS = 100.0
HOUR = 3600.0


class Faults:
    """The trouble of one run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._strike: Mapping[Fault, Callable[[float], bool]] = {
            Fault.CRASH: self._crash,
            Fault.DRAIN: self._drain,
            Fault.FREEZE: self._freeze,
            Fault.VANISH: self._vanish,
            Fault.SLOW: self._slow,
            Fault.CUT: self._cut,
            Fault.PARTITION: self._partition,
            Fault.LOSS: self._loss,
            Fault.REPEAT: self._repeat,
            Fault.DELAY: self._delay,
            Fault.OUTAGE: self._outage,
            Fault.WIPE: self._wipe,
            Fault.FAILOVER: self._fail_over,
            Fault.CLOCK: self._clock,
            Fault.CORRUPT: self._corrupt,
            Fault.ROT: self._rot,
            Fault.CHANGE: self._change,
            Fault.LATE: self._late,
            Fault.STORAGE: self._storage,
        }

    def schedule(self) -> None:
        """Draw when what strikes."""
        scenario, luck = self.world.scenario, self.world.heap.luck
        if not scenario.faults:
            return
        for _ in range(scenario.strikes):
            kind = luck.choice(scenario.faults)
            moment = luck.random() * scenario.trouble
            lasting = min(luck.choice((0.1, 1.0, 3.0, 10.0)) * (0.5 + luck.random()), scenario.trouble - moment)
            self.world.heap.after(moment, self._begin, kind, lasting)

    def _begin(self, kind: Fault, seconds: float) -> None:
        if self._strike[kind](seconds):
            self.world.struck[kind] += 1
            self.world.remark(f"{kind.value} for {seconds:.2f} s")

    def _later(self, seconds: float, call: Callable[..., object], *args: object) -> None:
        self.world.heap.after(seconds, call, *args)

    def _anyone(self, *, joining: bool = False, serving: bool = False) -> Process | None:
        """Somebody alive: in half the cases one that lends, if there is one."""
        luck = self.world.heap.luck
        living = [process for process in self.world.processes.values() if process.alive]
        lending = [process for process in living if isinstance(process.state, Serving)]
        if joining:
            living = [process for process in living if not process.ended]
        chosen = lending if lending and (serving or (not joining and luck.random() < 0.5)) else living
        if serving and not lending:
            return None
        return luck.choice(chosen) if chosen else None

    # ------------------------------------------------------------------------------------ workers

    def _crash(self, seconds: float) -> bool:
        return self._kill(seconds, silent=False)

    def _vanish(self, seconds: float) -> bool:
        return self._kill(seconds, silent=True)

    def _kill(self, seconds: float, *, silent: bool) -> bool:
        process = self._anyone()
        if process is None:
            return False
        self.world.remark(f"{process.inbox} is killed")
        process.kill(silent=silent)
        self._later(seconds, self.world.restart, process)
        return True

    def _drain(self, seconds: float) -> bool:
        process = self._anyone()
        if process is None:
            return False
        process.post(DrainRequested())
        self._later(seconds + self.world.scenario.limits.drain, self.world.replace, process)
        return True

    def _freeze(self, seconds: float) -> bool:
        process = self._anyone()
        if process is None or process.thaws > self.world.heap.now:
            return False
        process.thaws = self.world.heap.now + seconds
        process.frozen += seconds
        self.world.remark(f"{process.inbox} is frozen")
        return True

    def _slow(self, seconds: float) -> bool:
        process = self._anyone()
        if process is None:
            return False
        process.slowness = SLOWNESS
        self._later(seconds, _set, process, "slowness", 1.0)
        return True

    def _cut(self, seconds: float) -> bool:
        process = self._anyone()
        if process is None:
            return False
        process.severed = True
        self._later(seconds, _set, process, "severed", False)
        return True

    def _corrupt(self, seconds: float) -> bool:
        process = self._anyone(serving=True)
        if process is None:
            return False
        process.stained = True
        self._later(seconds, _set, process, "stained", False)
        return True

    def _rot(self, seconds: float) -> bool:
        process = self._anyone(serving=True)
        if process is None or process.lender.mode is not Mode.OPEN:
            return False
        chunk = self.world.heap.luck.randrange(self.world.scenario.chunks)
        process.memory[chunk] = self.world.checkpoint.damaged()
        self.world.altered.append(process.inbox)
        return True

    def _change(self, seconds: float) -> bool:
        process = self._anyone(serving=True)
        if process is None or process.lender.mode is not Mode.OPEN or process.inbox in self.world.altered:
            return False
        process.when_awake(process.post_to_source, events.WeightsChanged())
        process.when_awake(self._alter, process)
        self._later(seconds, process.when_awake, self._settle, process, self.world.heap.luck.random() < 0.5)
        return True

    def _alter(self, process: Process) -> None:
        """The host waits until nobody reads, as ``Replica.changing`` does."""
        if process.lender.grants:
            self._later(0.01, process.when_awake, self._alter, process)
            return
        self.world.altered.append(process.inbox)
        process.memory = [content + 1000 for content in process.memory]

    def _settle(self, process: Process, restored: bool) -> None:
        if process.lender.grants or process.inbox not in self.world.altered:
            self._later(0.01, process.when_awake, self._settle, process, restored)
            return
        if restored:
            process.memory = list(self.world.checkpoint.content)
            self.world.altered.remove(process.inbox)
        process.post_to_source(events.WeightsSettled())

    def _late(self, seconds: float) -> bool:
        process = self._anyone(joining=True)
        if process is None:
            return False
        process.late = True
        limits = self.world.scenario.limits
        process.excused += limits.sources * limits.quiet
        return True

    def _storage(self, seconds: float) -> bool:
        process = self._anyone(joining=True)
        if process is None:
            return False
        process.storage_fault = self.world.heap.luck.choice(("error", "stall", "slow"))
        return True

    # -------------------------------------------------------------------------------------- store

    def _partition(self, seconds: float) -> bool:
        process = self._anyone()
        if process is None:
            return False
        which = self.world.heap.luck.choice(("mute", "deaf", "both"))
        process.mute, process.deaf = which != "deaf", which != "mute"
        self.world.store.part(process)
        self._later(seconds, self.world.store.join, process)
        return True

    def _loss(self, seconds: float) -> bool:
        return self._weather("loss", 0.1, seconds)

    def _repeat(self, seconds: float) -> bool:
        return self._weather("repeat", 0.1, seconds)

    def _delay(self, seconds: float) -> bool:
        return self._weather("delay", 1.0, seconds)

    def _weather(self, what: str, much: float, seconds: float) -> bool:
        self._blow(what, much)
        self._later(seconds, self._blow, what, 0.0)
        return True

    def _blow(self, what: str, much: float) -> None:
        setattr(self.world.store, what, much)
        self.world.store.weather()

    def _outage(self, seconds: float) -> bool:
        store = self.world.store
        if not store.up:
            return False
        store.stop()
        self._later(seconds, store.start)
        return True

    def _wipe(self, seconds: float) -> bool:
        store = self.world.store
        if not store.up:
            return False
        store.stop()
        self._later(min(seconds, 1.0), store.wipe)
        return True

    def _fail_over(self, seconds: float) -> bool:
        store = self.world.store
        if not store.up:
            return False
        self._later(seconds, store.fail_over, store.snapshot())
        return True

    def _clock(self, seconds: float) -> bool:
        self.world.store.skew += self.world.heap.luck.uniform(-HOUR, HOUR)
        return True


def _set(process: Process, what: str, value: float | bool) -> None:
    setattr(process, what, value)
