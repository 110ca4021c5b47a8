"""The simulated way to the store: the real ledger behind words that get lost, late or repeated.

Decides when a worker's call reaches the ledger and when, or whether, its answer comes back. The
ledger is the one that ``coldstart.bus.memory`` serves from, so its rules are those that the bus
contract holds the real store to. It must not know machines; ``process.py`` calls it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from coldstart.bus.ledger import Ledger
from coldstart.testing.simulator.heap import Heap

if TYPE_CHECKING:
    from coldstart.testing.simulator.process import Process

AnswerT = TypeVar("AnswerT")

SHARD = "shard"
LINEAGE = "aa"

HOP = 0.0002
"""Seconds that a word takes one way on a quiet network."""
DEADLINE = 1.5
"""A call that is not answered within this has failed; whether it was done is unknown."""
RECOVERY = 1.0
"""Listeners are back within this after the store, or the way to it, is."""

Done = Callable[[AnswerT], None]
Failed = Callable[[str], None]


class Store:
    """The store, and the network to it."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self.skew = 0.0
        """Seconds that the store's clock is ahead of the heap's."""
        self.up = self.calm = True
        """``calm``: it is up, words pass in their usual time, and everybody reaches it."""
        self.loss = self.repeat = self.delay = 0.0
        self.parted: dict[Process, None] = {}
        self._now = self._clock
        self.ledger = Ledger(self._now)
        self.inboxes: dict[str, Process] = {}
        self._adopt()

    def weather(self) -> None:
        """Something of what decides on the way of words has changed."""
        self.calm = self.up and not (self.loss or self.repeat or self.delay or self.parted)

    def reaches(self, process: Process) -> bool:
        """Whether a word to the store and its answer get through now, luck apart."""
        return self.up and not (process.mute or process.deaf)

    def tell(self, caller: Process, operation: Callable[[], object]) -> None:
        """A call whose answer nobody waits for."""
        if self.calm:
            caller.calls += 1
            operation()
        else:
            self.call(caller, operation, _nobody, _nobody)

    def call(self, caller: Process, operation: Callable[[], AnswerT], done: Done[AnswerT], failed: Failed) -> None:
        """One call: ``operation`` is done at the store, then ``done`` or ``failed`` at the caller."""
        heap = self._heap
        caller.calls += 1
        if self.calm:
            heap.after(2 * HOP * (0.5 + heap.luck.random()), caller.hear, done, operation())
            return
        if not self.up:
            heap.after(HOP, caller.when_awake, failed, "the store is down")
        elif caller.mute or heap.luck.random() < self.loss:
            heap.after(DEADLINE, caller.when_awake, failed, "no answer from the store")
        else:
            heap.after(self._hop(), self._arrived, caller, operation, done, failed, heap.now + DEADLINE)

    def _arrived(
        self,
        caller: Process,
        operation: Callable[[], AnswerT],
        done: Done[AnswerT],
        failed: Failed,
        deadline: float,
    ) -> None:
        heap = self._heap
        if not self.up:
            heap.at(deadline, caller.when_awake, failed, "the store went down")
            return
        answer = operation()
        if heap.luck.random() < self.repeat:
            heap.after(self._hop() + heap.luck.random(), self._repeat, operation)
        back = self._hop()
        if caller.deaf or heap.luck.random() < self.loss or heap.now + back > deadline:
            heap.at(deadline, caller.when_awake, failed, "no answer from the store")
        else:
            heap.after(back, caller.when_awake, done, answer)

    def _repeat(self, operation: Callable[[], object]) -> None:
        if self.up:
            operation()

    def _hop(self) -> float:
        luck = self._heap.luck
        return HOP * (0.5 + luck.random()) + (self.delay * luck.random() if self.delay else 0.0)

    # ------------------------------------------------------------------------------- its own fate

    def wipe(self) -> None:
        """Lose everything, and be up."""
        self.ledger.wipe()
        for process in self.inboxes.values():
            process.sent_here = process.read_here = 0
        self.start()

    def stop(self) -> None:
        """Refuse every call from now on."""
        self.up = False
        self.weather()

    def start(self) -> None:
        """Be up again as it was."""
        self.up = True
        self.weather()
        self.recovered()

    def snapshot(self) -> Ledger:
        """A replica as of now."""
        hooks = self.ledger.on_letter, self.ledger.on_change
        self.ledger.on_letter = self.ledger.on_change = _nobody
        replica = copy.deepcopy(self.ledger, {id(self._now): self._now})
        self.ledger.on_letter, self.ledger.on_change = hooks
        return replica

    def fail_over(self, replica: Ledger) -> None:
        """Go on from ``replica``: what was acknowledged since is lost."""
        self.ledger = replica
        self._adopt()
        self.recovered()

    def part(self, process: Process) -> None:
        """The way between ``process`` and the store is broken."""
        self.parted[process] = None
        self.weather()

    def join(self, process: Process) -> None:
        """It is whole again."""
        process.mute = process.deaf = False
        self.parted.pop(process, None)
        self.weather()
        self.listen_again(process)

    def recovered(self) -> None:
        """All listeners listen again, each in its own time."""
        for process in self.inboxes.values():
            self.listen_again(process)

    def listen_again(self, process: Process) -> None:
        """The way to ``process`` is open again."""
        process.mail_due = True
        self._heap.after(RECOVERY * self._heap.luck.random(), process.read_mail)

    # ---------------------------------------------------------------------------------- wake-ups

    def _clock(self) -> float:
        return self._heap.now + self.skew

    def _adopt(self) -> None:
        self.ledger.on_letter = self._letter

    def _letter(self, shard: str, inbox: str) -> None:
        process = self.inboxes.get(inbox)
        if process is not None:
            process.sent_here += 1
            if not process.mail_due:
                self.wake(process)

    def wake(self, process: Process) -> None:
        """``process`` reads its mail soon, if nothing is in the way."""
        if process.mail_due:
            return
        process.mail_due = True
        heap = self._heap
        if self.calm:
            heap.after(HOP * (0.5 + heap.luck.random()), process.read_mail)
        else:
            lost = heap.luck.random() < self.loss
            heap.after(DEADLINE if lost else self._hop(), process.read_mail)


def _nobody(*args: object) -> None:
    return
