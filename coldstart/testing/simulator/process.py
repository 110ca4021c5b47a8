"""One life of one worker: the two real machines, their timers, and the mail.

Decides in which order events reach the machines, as the runner does, and what a killed or frozen
process still does: nothing. What the machines ask for is performed in ``joiner.py`` and
``source.py``; what must hold after each step is looked at in ``promises.py``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import msgspec

from coldstart import events, machine, source
from coldstart.effects import Arm, Disarm
from coldstart.errors import IllegalTransition
from coldstart.events import Event, Expired, StoreRenewed, Timer
from coldstart.messages import decode
from coldstart.phases.states import Failed, Gone, Serving, State
from coldstart.ports import Cursor, Heard
from coldstart.source import Mode, Source
from coldstart.testing.simulator.claims import TRANSPORTS
from coldstart.testing.simulator.groups import Votes
from coldstart.testing.simulator.joiner import JOINER_HANDS, JOINER_LETTERS, JoinerHands
from coldstart.testing.simulator.source import SOURCE_HANDS, SOURCE_LETTERS, SourceHands
from coldstart.testing.simulator.store import SHARD

if TYPE_CHECKING:
    from coldstart.testing.simulator.fleet import World

AnswerT = TypeVar("AnswerT")

RETRY = 0.5
"""A worker that cannot reach the store listens again after this."""


def _leaves(kind: type[Event]) -> list[type[Event]]:
    below = kind.__subclasses__()
    return [leaf for subclass in below for leaf in _leaves(subclass)] if below else [kind]


NUMBER_OF: Mapping[type[Event], int] = {
    kind: number for number, kind in enumerate(sorted(_leaves(Event), key=lambda kind: kind.__name__))
}
"""The event's place in the trace."""


ENDS: frozenset[type[State]] = frozenset({Serving, Failed, Gone})
"""States in which a cold start has ended, well or not."""


class _Clock(msgspec.Struct, eq=False):
    """A timer of one machine: when it runs out, and when the next tick looks."""

    lending: bool
    timer: Timer
    subject: str
    due: float = math.inf
    ticks: float = math.inf


class Process:
    """A worker from its start to its end.

    ``mute``: its words do not reach the store; ``deaf``: the store's answers do not reach it;
    ``severed``: no data passes between it and others. ``read_mail`` and the two ``*_step`` are what
    planted bugs replace.
    """

    __slots__ = (
        "_clocks", "_heap", "_queue", "_stepping", "alive", "answers", "began", "calls", "cursor", "deaf", "excused",
        "frozen", "group", "inbox", "incarnation", "index", "joining", "late", "lender", "lending", "mail_due",
        "memory", "mute", "name", "read_here", "sent_here", "severed", "since", "slowness", "stained", "state",
        "storage_fault", "thaws", "votes", "world",
    )  # fmt: skip

    joiner_step = staticmethod(machine.step)
    source_step = staticmethod(source.step)
    joiner_hands: type[JoinerHands] = JoinerHands
    source_hands: type[SourceHands] = SourceHands

    def __init__(self, world: World, name: str, index: int, life: int) -> None:
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
        self.calls = 0
        """How often it has called the store; reading its mail is not counted."""
        self.sent_here = self.read_here = 0
        """Letters put into its inbox in this life of the store, and letters that it has read."""
        self.cursor = Cursor()
        self.memory = world.checkpoint.empty()
        self.group = world.groups.of(name)
        self.votes = Votes(self, self.group) if self.group is not None else None
        self.state: State = machine.initial(world.scenario.limits, self.group, world.scenario.at_once)
        self.lender = Source(world.terms)
        self.joining = self.joiner_hands(self)
        self.lending = self.source_hands(self)
        self._clocks: dict[tuple[bool, Timer, str], _Clock] = {}
        self._queue: deque[tuple[bool, Event]] = deque()
        self._stepping = False

    def start(self) -> None:
        """Skeleton and memory are ready."""
        scenario = self.world.scenario
        self.world.store.inboxes[self.inbox] = self
        self.post(
            events.Started(
                scenario.chunks,
                scenario.partial,
                scenario.chunk_bytes,
                TRANSPORTS,
                growing=TRANSPORTS if scenario.growing else (),
                storage_rate=scenario.storage_known,
                abortable=TRANSPORTS if scenario.transport.abortable else (),
            )
        )
        if self.votes is not None:
            self.votes.beat()

    def kill(self, *, silent: bool = False) -> None:
        """End at once; if ``silent``, peers see no closed connection either."""
        self.alive, self.answers = False, not silent
        self.world.store.inboxes.pop(self.inbox, None)
        self.lending.close_all()

    @property
    def first(self) -> bool:
        """Whether this is the first life of its name."""
        return self.incarnation == "1"

    @property
    def ended(self) -> bool:
        """Whether the cold start has ended, well or not."""
        return type(self.state) in ENDS

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
        if self.thaws > self._heap.now:
            if self.thaws < math.inf:
                self._heap.at(self.thaws, self.when_awake, call, *args)
            return
        call(*args)

    def hear(self, done: Callable[[AnswerT], None], answer: AnswerT) -> None:
        """Take the answer to a call, as :meth:`when_awake` does."""
        if self.alive and self.thaws <= self._heap.now:
            done(answer)
        else:
            self.when_awake(done, answer)

    def _run(self) -> None:
        """Step the machines through all events, and perform what they ask for: timers here, the rest by the hands.

        Half of a simulation's time is spent in this loop, so that the steps are written out in it.
        """
        queue, clocks, journal = self._queue, self._clocks, self.world.journal
        now, trace = self._heap.now, self._heap.trace
        self._stepping = True
        try:
            while queue and self.alive:
                lending, event = queue.popleft()
                number = self.index + NUMBER_OF[type(event)]
                if lending:
                    trace.append(now)
                    trace.append(number + 0.5)
                    lender = self.lender
                    self.lender, asked = self.source_step(lender, event, now)
                    if journal is not None:
                        self.world.note(self, event, lender.mode.value, self.lender.mode.value)
                else:
                    trace.append(now)
                    trace.append(number)
                    before = self.state
                    self.state, asked = self.joiner_step(before, event, now)
                    if journal is not None:
                        self.world.note(self, event, type(before).__name__, type(self.state).__name__)
                    if type(before) is not type(self.state):
                        self._entered(before)
                for effect in asked:
                    if type(effect) is Arm:
                        clock = clocks.get((lending, effect.timer, effect.subject))
                        if clock is None:
                            clock = _Clock(lending, effect.timer, effect.subject)
                            clocks[lending, effect.timer, effect.subject] = clock
                        clock.due = due = now + effect.seconds
                        # A timer set anew before it runs out costs no event: the tick on its way looks again.
                        if due < clock.ticks:
                            clock.ticks = due
                            self._heap.at(due, self._tick, clock)
                    elif type(effect) is Disarm:
                        clock = clocks.pop((lending, effect.timer, effect.subject), None)
                        if clock is not None:
                            clock.due = math.inf
                    elif lending:
                        SOURCE_HANDS[type(effect)](self.lending, effect)
                    else:
                        JOINER_HANDS[type(effect)](self.joining, effect)
        except IllegalTransition as error:
            self.world.promises.broken("total machines", self, str(error))
            self.kill()
        self._stepping = False

    def _entered(self, before: State) -> None:
        entered = type(self.state)
        if entered in ENDS:
            self.world.promises.ended(self, before)
            if entered is Failed:
                self.world.failed(self)

    def _tick(self, clock: _Clock) -> None:
        now = self._heap.now
        if clock.ticks != now or clock.due == math.inf or not self.alive:
            return
        later = max(clock.due, self.thaws)
        if later > now:
            clock.ticks = later
            if later < math.inf:
                self._heap.at(later, self._tick, clock)
            return
        clock.ticks = clock.due = math.inf
        (self.post_to_source if clock.lending else self.post)(Expired(clock.timer, clock.subject))

    # -------------------------------------------------------------------------------------- mail

    def read_mail(self) -> None:
        """Take what the store has for us, from the cursor on; again later if it cannot be reached."""
        self.mail_due = False
        if not self.alive:
            return
        if self.thaws > self._heap.now:
            self.mail_due = True
            self.when_awake(self.read_mail)
            return
        store = self.world.store
        if not (store.calm or store.reaches(self)):
            self.mail_due = True
            self._heap.after(RETRY, self.read_mail)
            return
        heard = self.listen()
        self.cursor = heard.cursor
        if heard.renewed:
            self.post_to_source(StoreRenewed())
            store.wake(self)
        for letter in heard.letters:
            self.read_here += 1
            if letter.granted is not None:
                self.joining.claims.granted(letter.transfer, letter.granted)
                continue
            message = decode(letter.body)
            if (take := JOINER_LETTERS.get(type(message))) is not None:
                take(self.joining, message)
            else:
                SOURCE_LETTERS[type(message)](self.lending, message, letter.fence)

    def listen(self) -> Heard:
        """What came since the cursor."""
        return self.world.store.ledger.heard(SHARD, self.inbox, self.cursor)
