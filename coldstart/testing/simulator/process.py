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


class _Clock:
    """A timer: when it runs out, and when the next tick looks."""

    __slots__ = ("due", "expired", "lending", "ticks")

    def __init__(self, lending: bool, expired: Expired) -> None:
        self.lending, self.expired = lending, expired
        self.due = self.ticks = math.inf


Hands = Mapping[type[Effect], Callable[..., None]]


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
        self.world, self.name = world, name
        self.index = 64 * index
        """What its steps are numbered from, in the trace."""
        self._heap = world.heap
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
        self.sent_here = self.read_here = 0
        """Letters put into its inbox in this life of the store, and letters that it has read."""
        self.cursor = Cursor()
        self.memory = world.checkpoint.empty()
        self.state: State = machine.initial(scenario.limits)
        self.lender = Source(Terms(LINEAGE, scenario.slots, ("sim",), drain=scenario.limits.drain))
        self.joining = self.joiner_hands(self)
        self.lending = self.source_hands(self)
        self._joining, self._lending = self.joining.perform, self.lending.perform
        self._clocks: dict[tuple[bool, Timer, str], _Clock] = {}
        self._queue: deque[tuple[bool, Event]] = deque()
        self._stepping = False

    def start(self) -> None:
        """Skeleton and memory are ready."""
        scenario = self.world.scenario
        self.world.store.inboxes[self.inbox] = self
        self.post(events.Started(scenario.chunks, scenario.partial, scenario.chunk_bytes, ("sim",)))

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
    def sound(self) -> bool:
        """Whether its memory is what the checkpoint holds."""
        return self.memory == self.world.checkpoint.content

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
        heap, before = self._heap, self.state
        heap.trace += (heap.now, self.index + NUMBER_OF[type(event)])
        self.state, effects = self.joiner_step(before, event, heap.now)
        if self.world.journal is not None:
            self.world.note(self, event, type(before).__name__, type(self.state).__name__)
        if type(before) is not type(self.state):
            self._entered(before)
        self._perform(False, effects, self._joining)

    def _entered(self, before: State) -> None:
        waiting = self.world.store.waiting
        if isinstance(self.state, Waiting):
            waiting[self] = None
        elif isinstance(before, Waiting):
            waiting.pop(self, None)
        elif isinstance(self.state, Serving | Failed | Gone):
            self.world.promises.ended(self, before)
            if isinstance(self.state, Failed):
                self.world.failed(self)

    def _step_source(self, event: Event) -> None:
        heap, before = self._heap, self.lender
        heap.trace += (heap.now, self.index + NUMBER_OF[type(event)] + 0.5)
        self.lender, effects = self.source_step(before, event, heap.now)
        if self.world.journal is not None:
            self.world.note(self, event, before.mode.value, self.lender.mode.value)
        self._perform(True, effects, self._lending)

    def _perform(self, lending: bool, effects: tuple[Effect, ...], hands: Hands) -> None:
        """Timers here, everything else by the hands.

        A timer that is set anew before it runs out costs no event: the tick on its way looks again.
        """
        for effect in effects:
            kind = type(effect)
            if kind is Arm:
                assert isinstance(effect, Arm)
                key = (lending, effect.timer, effect.subject)
                clock = self._clocks.get(key)
                if clock is None:
                    clock = self._clocks[key] = _Clock(lending, Expired(effect.timer, effect.subject))
                clock.due = when = self._heap.now + effect.seconds
                if when < clock.ticks:
                    clock.ticks = when
                    self._heap.after(effect.seconds, self._tick, clock, when)
            elif kind is Disarm:
                assert isinstance(effect, Disarm)
                clock = self._clocks.pop((lending, effect.timer, effect.subject), None)
                if clock is not None:
                    clock.due = math.inf
            else:
                hands[kind](effect)

    def _tick(self, clock: _Clock, when: float) -> None:
        if clock.ticks != when or clock.due == math.inf or not self.alive:
            return
        now = self._heap.now
        later = max(clock.due, self.thaws)
        if later > now:
            clock.ticks = later
            if later < math.inf:
                self._heap.at(later, self._tick, clock, later)
            return
        clock.ticks = clock.due = math.inf
        (self.post_to_source if clock.lending else self.post)(clock.expired)

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
        if not (store.calm or store.reaches(self)):
            self.mail_due = True
            self.world.heap.after(RETRY, self.read_mail)
            return
        heard = self.listen()
        self.cursor = heard.cursor
        if heard.renewed:
            self.post_to_source(StoreRenewed())
            store.wake(self)
        self.read_here += len(heard.letters)
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
