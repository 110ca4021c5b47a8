"""Groups of ranks in the simulation: who belongs together, what a rank tells the store, and one answer for all.

Decides when a group is started anew (as soon as one of its ranks has failed, as a launcher does) and what
counts as a group that did not act as one. The counterpart of ``coldstart.voting`` without waiting.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from coldstart import effects, events
from coldstart.claiming import LEAD_SECONDS
from coldstart.group import PATH, PEERS, READY, Accord, Answer, Group, Paper, Tally, Verdict
from coldstart.phases.states import STORAGE, Confirming, Draining, Failed, Failure, Gone, State
from coldstart.testing.simulator.scenario import Fault
from coldstart.voting import LOOKS, QUICK, SLOW, beat_of

if TYPE_CHECKING:
    from coldstart.testing.simulator.fleet import World
    from coldstart.testing.simulator.process import Process

TOGETHER = "a group acts as one"
CRASH_LOOP = 1.0
"""Seconds until somebody starts a failed group anew."""
JITTER = 0.5
"""Seconds within which the ranks of a group start."""
UNHEARD = {
    Fault.PARTITION, Fault.LOSS, Fault.REPEAT, Fault.DELAY, Fault.OUTAGE, Fault.WIPE, Fault.FAILOVER, Fault.CLOCK,
}  # fmt: skip
"""Faults at the store after which a rank may rightly count as gone."""
FORGETS = {Fault.WIPE, Fault.FAILOVER, Fault.CLOCK}
"""Faults in which a store loses records, verdicts among them."""


class Groups:
    """All groups of one run; a scenario of single workers has none."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.starts: dict[str, int] = {}
        """By group: how often it was started anew."""
        self.heard: dict[tuple[str, str], Verdict] = {}
        """By start and question: the first verdict that anybody heard."""

    def of(self, name: str) -> Group | None:
        """The place of the worker ``name`` in its group."""
        size = self.world.scenario.group_size
        if size == 1 or name.startswith("h"):  # who holds the weights beforehand is nobody's rank
            return None
        number = int(name[1:])
        team = f"{name[0]}{number // size}"
        return Group(f"{team}.{self.starts.get(team, 0)}", size, number % size)

    def failed(self, process: Process) -> None:
        """A rank has failed: its whole group is ended and started anew, under another name."""
        assert process.group is not None
        team, start = process.group.name.split(".")
        if self.starts.get(team, 0) == int(start):
            self.starts[team] = int(start) + 1
            self.world.heap.after(CRASH_LOOP, self._start_anew, process)

    def _start_anew(self, failed: Process) -> None:
        assert failed.group is not None
        first = int(failed.name[1:]) // failed.group.size * failed.group.size
        names = [f"{failed.name[0]}{number}" for number in range(first, first + failed.group.size)]
        for process in list(self.world.processes.values()):
            if process.alive and process.name in names:
                process.kill()
        for name in names:
            self.world.launch(name)

    def back(self, process: Process) -> bool:
        """Whether a dead rank is, or will soon be, alive again in a new start of its group."""
        others = self.world.processes.values()
        anew = process.group != self.of(process.name)
        return anew or any(other.alive and other.name == process.name for other in others)

    # ------------------------------------------------------------------------------ what must hold

    def told(self, process: Process, verdict: Verdict) -> None:
        """A rank hears a verdict: the one that the others hear."""
        assert process.group is not None
        first = self.heard.setdefault((process.group.name, verdict.question), verdict)
        if first.yes is not verdict.yes and FORGETS.isdisjoint(self.world.struck):
            self.world.promises.broken(TOGETHER, process, f"hears {verdict}, others heard {first}")

    def served(self, process: Process, state: State) -> None:
        """A rank serves: its bytes came over the path that was decided."""
        accord = state.journey.accord
        if accord is None or accord.alone:
            return
        for verdict in accord.verdicts:
            self.told(process, verdict)
        from_storage = {origin == STORAGE for origin, _ in state.journey.origins}
        promises, ready, path = self.world.promises, accord.verdict(READY), accord.verdict(PATH)
        if ready is None or not ready.yes:
            promises.broken(TOGETHER, process, f"serves alone: {ready}")
        if path is not None and not path.yes and False in from_storage:
            promises.broken(TOGETHER, process, f"reads from peers: {path}")
        peers = accord.verdict(PEERS)
        if peers is not None and peers.yes and True in from_storage and not self._anew(process):
            promises.broken(TOGETHER, process, f"reads storage: {peers}")

    def _anew(self, process: Process) -> bool:
        """Whether a rank took the place of a dead one, which may have had its part in verdicts."""
        namesakes = [other for other in self.world.processes.values() if other.name == process.name]
        return any(other is not process and _together(other, process) for other in namesakes)

    def excuses(self, process: Process, state: Failed) -> bool:
        """Whether a rank of its group, or the way to the store, is to blame that the group does not serve."""
        if process.group is None or state.failure is not Failure.GROUP:
            return False
        others = [other for other in self.world.processes.values() if _together(process, other)]
        return not UNHEARD.isdisjoint(self.world.struck) or any(
            not other.alive
            or other.frozen
            or other.storage_fault
            or isinstance(other.state, Gone | Draining)
            or (isinstance(other.state, Failed) and other.state.failure is not Failure.GROUP)
            for other in others
        )


def _together(one: Process, other: Process) -> bool:
    return one.group is not None and other.group is not None and one.group.name == other.group.name


class Votes:
    """One rank's votes."""

    def __init__(self, process: Process, group: Group) -> None:
        self.process, self.group, self.world = process, group, process.world
        self.presence = process.world.scenario.limits.presence
        self.answers: dict[str, Answer] = {}
        self.heard: dict[str, Verdict] = {}
        self.answered = process.began
        self.ends = math.inf
        self.looking = False

    def beat(self) -> None:
        """Show that this rank lives, until its end or some time after the group serves."""
        if self.answered >= self.ends or isinstance(self.process.state, Failed | Gone):
            return
        self.ask()
        if READY in self.heard:
            self.ends = min(self.ends, self.world.heap.now + self.presence)
        self.world.heap.after(beat_of(self.presence, self.heard), self.process.when_awake, self.beat)

    def vote(self, effect: effects.Vote) -> None:
        """Answer a question, and look for its verdict."""
        earlier = self.answers.get(effect.question)
        if earlier is None or earlier.yes:
            self.answers[effect.question] = Answer(effect.question, effect.yes, effect.reason)
        self.ask()
        if not self.looking:
            self.looking = True
            self._look_later(QUICK)
        if effect.question == READY and effect.yes:
            self.hold_lead()

    def hold_lead(self) -> None:
        """Followers of ours go on waiting for us until the group may serve."""
        process = self.process
        if process.joining.claims.leading and isinstance(process.state, Confirming):
            process.joining.claims.lead(LEAD_SECONDS)
            self.world.heap.after(LEAD_SECONDS / 3, process.when_awake, self.hold_lead)

    def _look_later(self, pause: float) -> None:
        wait = max(pause, self.group.size / LOOKS)
        self.world.heap.after(wait, self.process.when_awake, self._look, min(2 * pause, SLOW))

    def _look(self, pause: float) -> None:
        over = isinstance(self.process.state, Failed | Gone)
        self.looking = not over and any(question not in self.heard for question in self.answers)
        if self.looking:
            self.ask()
            self._look_later(pause)

    def ask(self) -> None:
        """Give our paper; what stands is heard."""
        store, group = self.world.store, self.group
        answers = tuple(answer for question, answer in self.answers.items() if question not in self.heard)
        paper = Paper(
            group.member, self.process.incarnation, group.size, self.presence, answers, tuple(self.heard.values())
        )
        store.call(self.process, lambda: store.ledger.vote(group.name, paper), self._told, self._missed)

    def _told(self, tally: Tally) -> None:
        self.answered = self.world.heap.now
        fresh = tuple(verdict for verdict in tally.verdicts if verdict.question not in self.heard)
        for verdict in fresh:
            self.heard[verdict.question] = verdict
            self.world.groups.told(self.process, verdict)
        if fresh:
            self.process.post(events.GroupHeard(fresh))

    def _missed(self, reason: str) -> None:
        now = self.world.heap.now
        if now - self.answered >= self.presence:
            self.answered = now
            self.process.post(events.GroupLost(reason))


def waited(accord: Accord | None) -> float:
    """Seconds that a rank waited for its group."""
    return accord.waited if accord is not None else 0.0
