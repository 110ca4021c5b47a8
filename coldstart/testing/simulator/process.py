"""One life of one worker: the two real machines, their timers, and the mail.

Decides in which order events reach the machines, as the runner does, and what a killed or frozen
process still does: nothing. What the machines ask for is performed in ``joiner.py`` and
``source.py``; what must hold after each step is looked at in ``promises.py``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from coldstart import events, machine, source
from coldstart.effects import Arm, Disarm, Effect
from coldstart.errors import IllegalTransition
from coldstart.events import Event, Expired, FleetChanged, StoreRenewed, Timer
from coldstart.messages import Accept, Done, Doubt, Hello, Offer, Refusal, decode
from coldstart.phases.states import Failed, Gone, Serving, State, Waiting
from coldstart.ports import Cursor, Heard
from coldstart.source import Mode, Source, Terms
from coldstart.testing.simulator.joiner import JoinerHands
from coldstart.testing.simulator.source import SourceHands
from coldstart.testing.simulator.store import LINEAGE, SHARD

if TYPE_CHECKING:
    from coldstart.testing.simulator.fleet import World

RETRY = 0.5
"""A worker that cannot reach the store listens again after this."""


def _leaves(kind: type[Event]) -> list[type[Event]]:
    below = kind.__subclasses__()
    return [leaf for subclass in below for leaf in _leaves(subclass)] if below else [kind]


NUMBER_OF: Mapping[type[Event], int] = {
    kind: number for number, kind in enumerate(sorted(_leaves(Event), key=lambda kind: kind.__name__))
}
"""The event's place in the trace."""


class Process:
    """A worker from its start to its end.

    ``mute``: its words do not reach the store; ``deaf``: the store's answers do not reach it;
    ``severed``: no data passes between it and others. ``read_mail`` and the two ``*_step`` are what
    planted bugs replace.
    """

    joiner_step = staticmethod(machine.step)
    source_step = staticmethod(source.step)
    joiner_hands: type[JoinerHands] = JoinerHands
    source_hands: type[SourceHands] = SourceHands

    def __init__(self, world: World, name: str, index: int, life: int) -> None:
        scenario = world.scenario
        self.world, self.name, self.index = world, name, index
        self.incarnation, self.inbox = str(life), f"{name}.{life}"
        self.began = world.heap.now
        self.alive, self.answers = True, True
        self.thaws = -math.inf
        self.frozen = self.excused = 0.0
        """Seconds that it stood still, and that others may cost it beyond its budget."""
        self.since = math.inf
        """When its advert stood first."""
        self.mute = self.deaf = self.severed = self.stained = self.late = False
        self.slowness = 1.0
        self.storage_fault = ""
        self.mail_due = False
        self.cursor = Cursor()
        self.memory = world.checkpoint.empty()
        self.state: State = machine.initial(scenario.limits)
        self.lender = Source(Terms(LINEAGE, scenario.slots, ("sim",), drain=scenario.limits.drain))
        self.joining = self.joiner_hands(self)
        self.lending = self.source_hands(self)
        self._deadlines: dict[tuple[bool, Timer, str], float] = {}
        self._ticking: dict[tuple[bool, Timer, str], float] = {}
        self._queue: deque[tuple[bool, Event]] = deque()
        self._stepping = False

    def start(self) -> None:
        """Skeleton and memory are ready."""
        scenario = self.world.scenario
        self.world.store.inboxes[self.inbox] = self
        self.post(events.Started(scenario.chunks, scenario.partial, scenario.chunk_bytes))

    def kill(self, *, silent: bool = False) -> None:
        """End at once; if ``silent``, peers see no closed connection either."""
        self.alive, self.answers = False, not silent
        self.world.store.inboxes.pop(self.inbox, None)
        self.world.store.waiting.pop(self, None)
        self.lending.close_all()

    @property
    def ended(self) -> bool:
        """Whether the cold start has ended, well or not."""
        return isinstance(self.state, Serving | Failed | Gone)

    @property
    def lends(self) -> bool:
        return self.alive and self.lender.mode is Mode.OPEN

    # ------------------------------------------------------------------------------------ events

    def post(self, event: Event) -> None:
        """To the joiner's machine."""
        self._queue.append((False, event))
        if not self._stepping:
            self._run()

    def post_to_source(self, event: Event) -> None:
        """To the source's machine."""
        self._queue.append((True, event))
        if not self._stepping:
            self._run()

    def when_awake(self, call: Callable[..., object], *args: object) -> None:
        """Call now; later if frozen, never if dead."""
        if not self.alive:
            return
        if self.thaws > self.world.heap.now:
            if self.thaws < math.inf:
                self.world.heap.at(self.thaws, self.when_awake, call, *args)
            return
        call(*args)

    def _run(self) -> None:
        self._stepping = True
        queue = self._queue
        try:
            while queue and self.alive:
                lending, event = queue.popleft()
                if lending:
                    self._step_source(event)
                else:
                    self._step_joiner(event)
        except IllegalTransition as error:
            self.world.promises.broken("total machines", self, str(error))
            self.kill()
        self._stepping = False

    def _step_joiner(self, event: Event) -> None:
        heap, before = self.world.heap, self.state
        heap.trace.append(heap.now)
        heap.trace.append(self.index * 64 + NUMBER_OF[type(event)])
        self.state, effects = self.joiner_step(before, event, heap.now)
        if self.world.journal is not None:
            self.world.note(self, event, type(before).__name__, type(self.state).__name__)
        if type(before) is not type(self.state):
            self._entered(before)
        hands = self.joining
        for effect in effects:
            if not self._clock(False, effect):
                hands.perform[type(effect)](effect)

    def _entered(self, before: State) -> None:
        waiting = self.world.store.waiting
        if isinstance(self.state, Waiting):
            waiting[self] = None
        elif isinstance(before, Waiting):
            waiting.pop(self, None)
        self.world.promises.moved(self, before)
        if isinstance(self.state, Failed):
            self.world.failed(self)

    def _step_source(self, event: Event) -> None:
        heap, before = self.world.heap, self.lender
        heap.trace.append(heap.now)
        heap.trace.append(self.index * 64 + NUMBER_OF[type(event)] + 0.5)
        self.lender, effects = self.source_step(before, event, heap.now)
        if self.world.journal is not None:
            self.world.note(self, event, before.mode.value, self.lender.mode.value)
        hands = self.lending
        for effect in effects:
            if not self._clock(True, effect):
                hands.perform[type(effect)](effect)

    # ------------------------------------------------------------------------------------ timers

    def _clock(self, lending: bool, effect: Effect) -> bool:
        """Arm or disarm, if that is what the effect asks for.

        A timer that is set anew before it runs out costs no event: the one on its way looks again.
        """
        kind = type(effect)
        if kind is Arm:
            assert isinstance(effect, Arm)
            key = (lending, effect.timer, effect.subject)
            when = self._deadlines[key] = self.world.heap.now + effect.seconds
            if when < self._ticking.get(key, math.inf):
                self._ticking[key] = when
                self.world.heap.at(when, self._tick, key, when)
            return True
        if kind is Disarm:
            assert isinstance(effect, Disarm)
            self._deadlines.pop((lending, effect.timer, effect.subject), None)
            return True
        return False

    def _tick(self, key: tuple[bool, Timer, str], when: float) -> None:
        if self._ticking.get(key) != when or not self.alive:
            return
        del self._ticking[key]
        self.when_awake(self._expire, key)

    def _expire(self, key: tuple[bool, Timer, str]) -> None:
        deadline, now = self._deadlines.get(key), self.world.heap.now
        if deadline is None:
            return
        if deadline > now:
            if deadline < self._ticking.get(key, math.inf):
                self._ticking[key] = deadline
                self.world.heap.at(deadline, self._tick, key, deadline)
            return
        del self._deadlines[key]
        lending, timer, subject = key
        (self.post_to_source if lending else self.post)(Expired(timer, subject))

    # -------------------------------------------------------------------------------------- mail

    def read_mail(self) -> None:
        """Take what the store has for us, from the cursor on; again later if it cannot be reached."""
        self.mail_due = False
        if not self.alive:
            return
        if self.thaws > self.world.heap.now:
            self.mail_due = True
            self.when_awake(self.read_mail)
            return
        store = self.world.store
        if not store.reaches(self):
            self.mail_due = True
            self.world.heap.after(RETRY, self.read_mail)
            return
        heard = self.listen()
        self.cursor = heard.cursor
        if heard.renewed:
            self.post_to_source(StoreRenewed())
            store.wake(self)
        for letter in heard.letters:
            self._deliver(letter.body, letter.fence)
        if heard.fleet_changed and isinstance(self.state, Waiting):
            self.post(FleetChanged())

    def listen(self) -> Heard:
        """What came since the cursor."""
        return self.world.store.ledger.heard(SHARD, self.inbox, self.cursor)

    def _deliver(self, body: bytes, fence: int) -> None:
        message = decode(body)
        match message:
            case Offer() | Refusal():
                self.joining.letter(message)
            case Hello() | Accept() | Doubt() | Done():
                self.lending.letter(message, fence)
