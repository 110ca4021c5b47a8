"""The one loop that drives a machine: events in, step, effects out.

Decides nothing about cold starts. It owns the queue of events, the timers and the tasks that
perform effects, so that every outcome, including a bug in a plugin, comes back as an event and
nothing runs once the loop has ended. It knows neither the joiner's machine nor the source's,
nor any port; ``joining.py`` and ``lending.py`` perform the effects. Every step is told to the
observers before its effects are performed: journal, log, spans and report derive from that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup

from coldstart.effects import Arm, Disarm, Effect
from coldstart.errors import IllegalTransition
from coldstart.events import Event, Expired, Timer

S = TypeVar("S")


class Entry(msgspec.Struct, Generic[S], frozen=True):
    """One step of a machine as the journal keeps it. ``at`` is in monotonic seconds."""

    number: int
    at: float
    event: Event
    before: S
    after: S
    effects: tuple[Effect, ...]


Observer = Callable[[Entry[S]], None]
"""Told of every step; must be quick and must not raise."""


class Runner(Generic[S]):
    """Runs one machine until its state has ended.

    Args:
        state: the machine's first state.
        step: the machine.
        ended: whether a state is final.
        perform: performs one effect and posts what comes of it; must not raise.
        observers: told of each step, in order.
    """

    def __init__(
        self,
        state: S,
        step: Callable[[S, Event, float], tuple[S, tuple[Effect, ...]]],
        ended: Callable[[S], bool],
        perform: Callable[[Effect], Coroutine[Any, Any, None]],
        observers: Sequence[Observer[S]] = (),
    ) -> None:
        self.state = state
        self._step = step
        self._ended = ended
        self._perform = perform
        self._observers = tuple(observers)
        self._deadlines: dict[tuple[Timer, str], float] = {}
        self._count = 0
        self._performing = 0
        self.done = anyio.Event()
        """Set when the machine has ended and every effect has been performed."""
        self._send, self._receive = anyio.create_memory_object_stream[Event](math.inf)

    def post(self, event: Event) -> None:
        """Queue an event; from the loop's own thread only. After the end it is dropped."""
        try:
            self._send.send_nowait(event)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            return

    def forget(self) -> None:
        """Let go of observers and effects once the loop has ended."""
        self._observers, self._perform = (), _nothing

    async def run(self) -> None:
        """Drive the machine to its end, then go on until the effects on their way have been performed.

        What they are answered with may still ask for something: a slot granted too late is given back.

        Raises:
            IllegalTransition: a bug; nothing runs any more.
        """
        illegal: IllegalTransition | None = None
        with self._send, self._receive:
            async with anyio.create_task_group() as tasks:
                try:
                    while not self._ended(self.state):
                        self._advance(await self._next(), tasks)
                    self._deadlines.clear()
                    while self._performing or self._receive.statistics().current_buffer_used:
                        self._advance(await self._receive.receive(), tasks)
                except anyio.EndOfStream:
                    pass
                except IllegalTransition as error:  # raised below as it is, not in a group
                    illegal = error
                    tasks.cancel_scope.cancel()
        self.done.set()
        if illegal is not None:
            raise illegal

    def _advance(self, event: Event, tasks: TaskGroup) -> None:
        at = anyio.current_time()
        before = self.state
        self.state, effects = self._step(before, event, at)
        self._count += 1
        entry = Entry(self._count, at, event, before, self.state, effects)
        if effects or not self._ended(before):
            for observe in self._observers:
                observe(entry)
        for effect in effects:
            match effect:
                case Arm(timer=timer, seconds=seconds, subject=subject):
                    self._deadlines[timer, subject] = at + seconds
                case Disarm(timer=timer, subject=subject):
                    self._deadlines.pop((timer, subject), None)
                case _:
                    self._performing += 1
                    tasks.start_soon(self._perform_one, effect, name=type(effect).__name__)

    async def _perform_one(self, effect: Effect) -> None:
        await self._perform(effect)
        self._performing -= 1
        if not self._performing and self._ended(self.state):
            self._send.close()

    async def _next(self) -> Event:
        """The next event, or the expiry of the next timer, whichever comes first."""
        if not self._deadlines:
            return await self._receive.receive()
        key = min(self._deadlines, key=self._deadlines.__getitem__)
        with anyio.move_on_at(self._deadlines[key]):
            return await self._receive.receive()
        del self._deadlines[key]
        return Expired(*key)


async def _nothing(effect: Effect) -> None:
    return
