"""Sources of one joiner that bring what they are asked for at rates of their own, driven by its real machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from coldstart import effects, events
from coldstart.effects import Effect
from coldstart.events import Event
from coldstart.machine import initial, step
from coldstart.phases.states import State, Transferring
from coldstart.plan import Chunks, Limits
from coldstart.policies import AtOnce, source_bound
from coldstart.ports import Advert
from coldstart.runner import Entry, Observer

CHUNKS, SIZE = 200, 1_000_000


def advert(worker: str) -> Advert:
    return Advert(worker, f"{worker}.1", "1", 1, "aa", 2, CHUNKS, CHUNKS, ("tcp",), "127.0.0.1", "cpu")


class Ended(NamedTuple):
    """How it went: the last state, how often each chunk was asked for, what each source brought, and when."""

    state: State
    asked: dict[int, int]
    brought: dict[int, int]
    released: list[tuple[int, str]]
    seconds: float
    most: int
    """Sources that were asked for something at the same time."""


class Swarm:
    """One joiner, the source of attempt 1 and those of attempts -1, -2, ...

    Args:
        rates: bytes per second of each attempt's source; where it has none, nobody is free.
        dies: the attempt whose source dies, and after how many chunks of anybody.
        crowd: there are two, of a part each; else the policy says how many.
        observers: told of every step.
    """

    def __init__(
        self,
        limits: Limits,
        rates: dict[int, float],
        *,
        growing: bool = True,
        dies: tuple[int, int] | None = None,
        crowd: bool = False,
        at_once: AtOnce = source_bound,
        observers: Sequence[Observer[State]] = (),
    ) -> None:
        self.rates, self.dies = rates, dies
        self.queues: dict[int, list[int]] = {attempt: [] for attempt in rates}
        self.asked_of: dict[int, Chunks] = {attempt: Chunks() for attempt in rates}
        self.asked: dict[int, int] = {}
        self.brought = dict.fromkeys(rates, 0)
        self.released: list[tuple[int, str]] = []
        self.due: dict[int, float] = {}
        self.now, self.most, self.turns = 0.0, 0, 0
        self._told: list[Event] = []
        self._observers, self._steps = observers, 0
        names = ("tcp",) if growing else ()
        started = events.Started(CHUNKS, chunk_bytes=SIZE, transports=("tcp",), growing=names, abortable=("tcp",))
        self.state: State = initial(limits, at_once=at_once)
        self.part = 0 if crowd else -1
        self.tell(started)

    def tell(self, *happened: Event) -> None:
        """Events, and all that come of them at once."""
        self._told += happened
        while self._told:
            before, event = self.state, self._told.pop(0)
            self.state, asked = step(before, event, self.now)
            self._steps += 1
            for observer in self._observers:
                observer(Entry(self._steps, self.now, event, before, self.state, asked))
            for effect in asked:
                self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case effects.ClaimSource(attempt=attempt, part=part) if attempt in self.rates:
                granted = events.SourceClaimed(attempt, advert(f"s{attempt}"), "root", part=max(part, self.part))
                offered = events.OfferReceived(attempt, "tcp", b"t", 1)
                truth = (events.TruthReceived(attempt),) if attempt > 0 else ()
                self._told += (granted, *truth, offered)
            case effects.ClaimSource(attempt=attempt) if attempt < 0:
                self._told.append(events.ClaimDeferred(attempt, ""))
            case effects.Pull(attempt=attempt, chunks=chunks):
                for other, queue in self.queues.items():
                    under_way = self.asked_of[other] & Chunks.of(queue)
                    assert other == attempt or not chunks & under_way, "asked of two at the same time"
                for chunk in chunks:
                    self.asked[chunk] = self.asked.get(chunk, 0) + 1
                if not self.queues[attempt]:
                    self.due[attempt] = self.now + SIZE / self.rates[attempt]
                self.queues[attempt] += list(chunks)
                self.asked_of[attempt] |= chunks
                self.most = max(self.most, len(self.due))
            case effects.Abandon(attempt=attempt):
                self.end(attempt, "abandoned")
            case effects.Release(attempt=attempt, outcome=outcome):
                self.released.append((attempt, outcome))
            case _:
                pass

    def end(self, attempt: int, reason: str = "") -> None:
        """The attempt's pull ends."""
        chunks, self.asked_of[attempt], self.queues[attempt] = self.asked_of[attempt], Chunks(), []
        self.due.pop(attempt, None)
        if chunks:
            self._told.append(events.PullEnded(attempt, reason, chunks=chunks))

    def turn(self) -> None:
        """The next chunk of anybody arrives, or its source dies instead."""
        attempt = min(self.due, key=lambda each: self.due[each])
        self.now = self.due[attempt]
        turn, self.turns = self.turns, self.turns + 1
        if self.dies is not None and self.dies[0] == attempt and self.dies[1] <= turn:
            self.dies = None
            self.end(attempt, "closed")
            self.tell()
            return
        chunk = self.queues[attempt].pop(0)
        self.brought[attempt] += 1
        self.due[attempt] = self.now + SIZE / self.rates[attempt]
        self.tell(events.BytesLanded(attempt, SIZE), events.ChunkVerified(attempt, chunk))
        if attempt in self.due and not self.queues[attempt]:
            self.end(attempt)
            self.tell()

    def play(self) -> Ended:
        """Until the transfer is over."""
        while self.due and isinstance(self.state, Transferring):
            self.turn()
        return Ended(self.state, self.asked, self.brought, self.released, self.now, self.most)
