"""Two sources of one joiner, of any speed, that may die at any step: every chunk arrives, once, and slots come back."""

from __future__ import annotations

from random import Random

import pytest

from coldstart import events
from coldstart.events import Timer
from coldstart.phases.states import Abandoning, Checking, Discovering, Transferring
from coldstart.plan import Chunks, Limits
from coldstart.portions import OUTRUN
from tests.phases.swarm import CHUNKS, SIZE, Swarm

LIMITS = Limits(crowd=1, sources=3, floor=0.0, patience=1000.0)


def crowd(rates: dict[int, float], growing: bool, dies: tuple[int, int] | None = None) -> Swarm:
    """Two sources, each of a part."""
    return Swarm(LIMITS, rates, growing=growing, dies=dies, crowd=True)


@pytest.mark.parametrize("growing", [True, False], ids=["growing", "pull by pull"])
@pytest.mark.parametrize("ratio", [1.0, 2.0, 5.0])
def test_both_end_together_whatever_their_rates(growing: bool, ratio: float) -> None:
    for rates in ({1: 100e6, -1: ratio * 100e6}, {1: ratio * 100e6, -1: 100e6}):
        ended = crowd(rates, growing).play()
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
    ended = crowd(rates, growing=True).play()
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
    world = crowd(rates, luck.random() < 0.5, dies=(attempt, luck.randrange(CHUNKS)))
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
    world = crowd({1: 100e6, -1: 90e6}, growing=True)
    assert isinstance(world.state, Transferring)
    mine = [chunk for chunk in range(CHUNKS) if chunk not in world.asked_of[-1]]
    world.tell(*[events.ChunkVerified(1, chunk) for chunk in mine])
    world.end(1)
    world.tell()
    assert isinstance(world.state, Transferring)
    assert world.state.idle
    world.now = 30.0
    world.tell(events.BytesLanded(-1, 1), events.Expired(Timer.STALL))
    assert isinstance(world.state, Transferring), "the other one is still at work"
    world.tell(events.Expired(Timer.STALL, "-1"))
    assert isinstance(world.state, Transferring | Abandoning)
    assert (-1, "stalled") in world.released
