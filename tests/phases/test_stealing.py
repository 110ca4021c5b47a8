"""Two sources of one joiner, of any speed, that may die at any step: every chunk arrives, once, and slots come back."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest

from coldstart import effects, events
from coldstart.effects import Effect
from coldstart.events import Event, Timer
from coldstart.machine import initial, step
from coldstart.phases.states import Abandoning, Checking, Discovering, State, Transferring
from coldstart.plan import Chunks, Limits
from coldstart.portions import OUTRUN
from coldstart.ports import Advert

CHUNKS, SIZE = 200, 1_000_000
LIMITS = Limits(crowd=1, sources=3, floor=0.0, patience=1000.0)


def advert(worker: str) -> Advert:
    return Advert(worker, f"{worker}.1", "1", 1, "aa", 2, CHUNKS, CHUNKS, ("tcp",), "127.0.0.1", "cpu")


class Ended(NamedTuple):
    """How it went: the last state, how often each chunk was asked for, what each source brought, and when."""

    state: State
    asked: dict[int, int]
    brought: dict[int, int]
    released: list[tuple[int, str]]
    seconds: float


class World:
    """Two sources that bring the chunks that they are asked for, one after the other, at rates of their own."""

    def __init__(self, rates: dict[int, float], growing: bool, dies: tuple[int, int] | None = None) -> None:
        self.rates, self.dies = rates, dies
        self.queues: dict[int, list[int]] = {1: [], -1: []}
        self.asked_of: dict[int, Chunks] = {1: Chunks(), -1: Chunks()}
        self.asked: dict[int, int] = {}
        self.brought = {1: 0, -1: 0}
        self.released: list[tuple[int, str]] = []
        self.due: dict[int, float] = {}
        self.now = 0.0
        names = ("tcp",) if growing else ()
        started = events.Started(CHUNKS, chunk_bytes=SIZE, transports=("tcp",), growing=names, abortable=("tcp",))
        self.state: State = initial(LIMITS)
        self.tell(started, events.SourceClaimed(1, advert("a"), "root", part=0), events.TruthReceived(1))
        self.tell(events.OfferReceived(1, "tcp", b"a", 1), events.SourceClaimed(-1, advert("b"), "root", part=1))
        self.tell(events.OfferReceived(-1, "tcp", b"b", 2))

    def tell(self, *happened: Event) -> None:
        for event in happened:
            self.state, asked = step(self.state, event, self.now)
            for effect in asked:
                self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case effects.Pull(attempt=attempt, chunks=chunks):
                others = self.asked_of[-attempt] & Chunks.of(self.queues[-attempt])
                assert not chunks & others, "what is on its way from one source is not asked of the other"
                for chunk in chunks:
                    self.asked[chunk] = self.asked.get(chunk, 0) + 1
                if not self.queues[attempt]:
                    self.due[attempt] = self.now + SIZE / self.rates[attempt]
                self.queues[attempt] += list(chunks)
                self.asked_of[attempt] |= chunks
            case effects.Abandon(attempt=attempt):
                self._end(attempt, "abandoned")
            case effects.Release(attempt=attempt, outcome=outcome):
                self.released.append((attempt, outcome))
            case _:
                pass

    def _end(self, attempt: int, reason: str = "") -> None:
        chunks, self.asked_of[attempt], self.queues[attempt] = self.asked_of[attempt], Chunks(), []
        self.due.pop(attempt, None)
        if chunks:
            self.tell(events.PullEnded(attempt, reason, chunks=chunks))

    def play(self) -> Ended:
        for turn in range(100_000):
            if not self.due or not isinstance(self.state, Transferring):
                break
            attempt = min(self.due, key=lambda each: self.due[each])
            self.now = self.due[attempt]
            if self.dies == (attempt, turn):
                self._end(attempt, "closed")
                continue
            chunk = self.queues[attempt].pop(0)
            self.brought[attempt] += 1
            self.due[attempt] = self.now + SIZE / self.rates[attempt]
            self.tell(events.BytesLanded(attempt, SIZE), events.ChunkVerified(attempt, chunk))
            if not self.queues[attempt]:
                self._end(attempt)
        return Ended(self.state, self.asked, self.brought, self.released, self.now)


@pytest.mark.parametrize("growing", [True, False], ids=["growing", "pull by pull"])
@pytest.mark.parametrize("ratio", [1.0, 2.0, 5.0])
def test_both_end_together_whatever_their_rates(growing: bool, ratio: float) -> None:
    for rates in ({1: 100e6, -1: ratio * 100e6}, {1: ratio * 100e6, -1: 100e6}):
        ended = World(rates, growing).play()
        assert isinstance(ended.state, Checking)
        assert set(ended.asked.values()) == {1}, "each chunk is asked for once"
        best = CHUNKS * SIZE / sum(rates.values())
        assert ended.seconds < best + 3 * SIZE / min(rates.values()), "the last few chunks of the slower one"
        assert (-1, "ok") in ended.released
        assert min(ended.brought.values()) > 0


@pytest.mark.parametrize("slow", [1, -1], ids=["the first", "the second"])
def test_a_source_that_is_outrun_is_left_in_the_end_game(slow: int) -> None:
    """It becomes a hundred times slower than the other one when it has been asked for something."""
    rates = {slow: 1e6, -slow: 100e6}
    ended = World(rates, growing=True).play()
    assert (slow, OUTRUN) in ended.released
    assert max(ended.asked.values()) <= 2
    if slow < 0:
        assert isinstance(ended.state, Checking)
        assert ended.seconds < 5, "and not the 25 s that it would take"
    else:
        assert isinstance(ended.state, Discovering), "what is left is asked of somebody else"
        assert len(ended.state.journey.verified) > CHUNKS * 3 // 4


@pytest.mark.parametrize("seed", range(60))
def test_nothing_is_lost_when_a_source_dies_at_any_step(seed: int) -> None:
    luck = Random(seed)
    rates = {1: luck.uniform(50e6, 500e6), -1: luck.uniform(50e6, 500e6)}
    attempt = luck.choice([1, -1])
    world = World(rates, luck.random() < 0.5, dies=(attempt, luck.randrange(CHUNKS)))
    ended = world.play()
    journey = ended.state.journey
    here = Chunks.of(chunk for chunk in range(CHUNKS) if chunk in journey.verified)
    assert len(here) == sum(ended.brought.values()), "what had come is kept"
    if attempt == -1 or journey.complete:
        assert isinstance(ended.state, Checking)
        assert journey.complete, "the first source brings what the second one owed"
        assert any(each == -1 for each, _ in ended.released)
    else:
        assert isinstance(ended.state, Discovering)
        assert {each for each, _ in ended.released} >= {1, -1}, "both slots are given back"


def test_a_source_that_has_nothing_to_do_does_not_stall() -> None:
    world = World({1: 100e6, -1: 90e6}, growing=True)
    assert isinstance(world.state, Transferring)
    mine = [chunk for chunk in range(CHUNKS) if chunk not in world.asked_of[-1]]
    world.tell(*[events.ChunkVerified(1, chunk) for chunk in mine])
    world._end(1)
    assert isinstance(world.state, Transferring)
    assert world.state.idle
    world.now = 30.0
    world.tell(events.BytesLanded(-1, 1), events.Expired(Timer.STALL))
    assert isinstance(world.state, Transferring), "the other one is still at work"
    world.tell(events.Expired(Timer.STALL, "-1"))
    assert isinstance(world.state, Transferring | Abandoning)
    assert (-1, "stalled") in world.released
