"""The source's machine where its weights change, are scrubbed or doubted: what is lent, and when again."""

from __future__ import annotations

import msgspec
import pytest

from coldstart import effects, events
from coldstart.effects import Arm, Disarm
from coldstart.events import Event, Timer
from coldstart.plan import Chunks
from coldstart.scrubbing import MISSES, Pace
from coldstart.source import MAX_DOUBTS, Mode, Source, step
from tests.sourcing import OPEN, TERMS, after, hello, opened


def test_changed_weights_end_all_grants_at_once_and_raise_the_generation() -> None:
    source, _ = after(OPEN, hello("t1"), hello("t2"))
    source, asked = after(source, events.WeightsChanged())
    assert (source.mode, source.generation) == (Mode.WITHHELD, 2)
    assert opened(source) == []
    assert effects.Advertise(2, 0, lends=False) in asked, "a reader that has just ended sees the new generation"
    for transfer in ("t1", "t2"):
        assert effects.CloseGrant(transfer, "tcp", "weights changed") in asked
        assert effects.SendRefusal(transfer, f"{transfer}.joiner", 7, "weights changed") in asked
    assert after(source, hello("t3"))[1] == (effects.SendRefusal("t3", "t3.joiner", 7, "withheld"),)


def test_settled_weights_are_lent_again_only_if_they_equal_the_truth() -> None:
    settled, asked = after(OPEN, events.WeightsChanged(), events.WeightsSettled())
    assert asked == (effects.Inspect(2),)
    proven, asked = after(settled, events.WeightsProven(2))
    assert (proven.mode, asked) == (Mode.OPEN, (effects.Advertise(2, 1),))
    damaged, asked = after(settled, events.WeightsDamaged(2, 0, "chunk 0 (a.weight)"))
    assert (damaged.mode, damaged.why, asked) == (Mode.WITHHELD, "weights damaged: chunk 0 (a.weight)", ())


SCRUBBED = Source(msgspec.structs.replace(TERMS, scrub=Pace(60.0, chunks=4)), have=Chunks.first(3))


def test_weights_that_are_lent_as_a_whole_are_digested_anew_chunk_by_chunk() -> None:
    source, asked = step(SCRUBBED, events.LendingStarted(), 0.0)
    assert Arm(Timer.SCRUB, 2.0) in asked
    found: list[Chunks] = []
    for turn in range(40):
        _, asked = step(source, events.Expired(Timer.SCRUB), 2.0 * turn)
        (scrub,) = asked
        assert isinstance(scrub, effects.Scrub)
        found.append(scrub.chunks)
        source, asked = step(source, events.Scrubbed(1, scrub.chunks, 0.001), 2.0 * turn)
        assert asked == (Arm(Timer.SCRUB, 2.0),)
    assert [chunk for chunks in found for chunk in chunks] == [0, 1, 2, 3, 0], "a pass takes a minute"
    assert len(found) == 40, "in between it only looks"


@pytest.mark.parametrize(
    ("pace", "cost", "pause"),
    [
        (Pace(300.0, 0.005, 250), 0.032, 6.4),
        (Pace(300.0, 0.005, 250), 0.0001, 1.2),
        (Pace(300.0, 0.005, 1), 0.0001, 2.0),
        (Pace(300.0, 0.005, 250), 100.0, 300.0),
    ],
    ids=["the share is kept", "quick: the pass is", "looks go on between chunks", "a long turn"],
)
def test_the_time_between_turns_follows_from_what_they_cost(pace: Pace, cost: float, pause: float) -> None:
    source = Source(msgspec.structs.replace(TERMS, scrub=pace), Mode.OPEN, have=None)
    assert step(source, events.Scrubbed(1, Chunks.first(1), cost), 0.0)[1] == (Arm(Timer.SCRUB, pytest.approx(pause)),)


def test_where_many_cost_what_one_does_a_late_turn_makes_up_for_it() -> None:
    source = Source(msgspec.structs.replace(TERMS, scrub=Pace(60.0, chunks=6, at_once=4)), Mode.OPEN, have=None)
    _, asked = step(source, events.Expired(Timer.SCRUB), 25.0)
    assert asked == (effects.Scrub(1, Chunks.first(3)),)
    source, _ = step(source, events.Scrubbed(1, Chunks.first(3), 0.1), 25.0)
    assert step(source, events.Expired(Timer.SCRUB), 34.0)[1] == (effects.Scrub(1, Chunks()),)
    assert step(source, events.Expired(Timer.SCRUB), 1000.0)[1] == (effects.Scrub(1, Chunks.of([3, 4, 5])),)
    source, _ = step(source, events.Scrubbed(1, Chunks.of([3, 4, 5]), 0.1), 1000.0)
    assert source.scrubbing.chunk == 0


def test_nothing_is_scrubbed_that_is_not_lent_as_a_whole_or_that_nobody_wants_scrubbed() -> None:
    assert not any(
        isinstance(effect, Arm) and effect.timer is Timer.SCRUB
        for effect in after(Source(TERMS, have=Chunks.first(1)), events.LendingStarted())[1]
    )
    shared, asked = after(SCRUBBED, events.ChunksShared(Chunks.first(2)))
    assert Arm(Timer.SCRUB, 2.0) not in asked
    lent, _ = after(SCRUBBED, events.LendingStarted())
    withheld, asked = after(lent, events.WeightsChanged())
    assert Disarm(Timer.SCRUB) in asked
    assert Disarm(Timer.SCRUB) in after(lent, events.DrainRequested())[1]
    for source in (shared, withheld, after(lent, events.DrainRequested())[0]):
        assert after(source, events.Expired(Timer.SCRUB)) == (source, ())
    assert Arm(Timer.SCRUB, 2.0) in after(withheld, events.WeightsSettled(), events.WeightsProven(2))[1]


@pytest.mark.parametrize(
    ("found", "reason", "why"),
    [
        (events.WeightsDamaged(1, 3, "chunk 3 (a.weight)"), "weights damaged", "weights damaged: chunk 3 (a.weight)"),
        (events.WeightsMoved(1, "a.weight was freed"), "weights moved", "weights moved: a.weight was freed"),
    ],
)
def test_a_change_that_nobody_announced_withdraws_the_source(found: Event, reason: str, why: str) -> None:
    source, _ = after(OPEN, *READ)
    source, asked = after(source, found)
    assert (source.mode, source.generation, source.why) == (Mode.WITHHELD, 2, why)
    assert effects.Advertise(2, 0, lends=False) in asked
    assert effects.SendRefusal("t1", "t1.joiner", 7, reason) in asked
    assert after(source, events.Scrubbed(1, Chunks.of([3]), 0.0)) == (source, ()), "a turn that it overtook"
    source, asked = after(source, events.WeightsSettled(), events.WeightsProven(2))
    assert (source.mode, source.why) == (Mode.OPEN, "")


def test_a_turn_that_fails_is_tried_again_and_then_proves_the_weights_wrong() -> None:
    source, _ = after(SCRUBBED, events.LendingStarted())
    for _ in range(MISSES - 1):
        source, asked = after(source, events.ScrubFailed(1, "out of memory"))
        assert asked == (Arm(Timer.SCRUB, 2.0),)
    assert after(source, events.Scrubbed(1, Chunks(), 0.0))[0].scrubbing.missed == 0
    source, _ = after(source, events.ScrubFailed(1, "out of memory"))
    assert (source.mode, source.why) == (
        Mode.WITHHELD,
        "weights damaged: they cannot be digested: out of memory",
    )


def test_an_inspection_that_a_change_overtook_proves_nothing() -> None:
    source, _ = after(OPEN, events.WeightsChanged(), events.WeightsSettled(), events.WeightsChanged())
    for answer in (events.WeightsProven(2), events.WeightsDamaged(2, 0)):
        assert after(source, answer) == (source, ())


READ = (hello(), events.OfferOpened("t1", b"ticket"), events.AcceptReceived("t1"))


def test_doubted_chunks_are_inspected_one_by_one_and_then_vouched_for() -> None:
    source, asked = after(OPEN, *READ, events.DoubtReceived("t1", 3))
    assert asked == (effects.Inspect(1, Chunks.of([3])),)
    source, asked = after(source, events.DoubtReceived("t1", 5))
    assert asked == ()
    assert after(source, events.DoubtReceived("t1", 3)) == (source, ()), "is being inspected already"
    source, asked = after(source, events.WeightsProven(1))
    assert asked == (effects.Inspect(1, Chunks.of([5])),)
    source, asked = after(source, events.WeightsProven(1))
    assert asked == (effects.Advertise(1, 1, held=("t1",)),), "the generation stays: what was read is right"
    assert (source.proof, source.doubts) == (1, ())


def test_weights_found_wrong_are_not_lent_again() -> None:
    source, asked = after(OPEN, *READ, events.DoubtReceived("t1", 3), events.WeightsDamaged(1, 3))
    assert source.mode is Mode.WITHHELD
    assert effects.Advertise(2, 0, lends=False) in asked
    assert effects.SendRefusal("t1", "t1.joiner", 7, "weights damaged") in asked


def test_a_doubt_counts_after_the_grant_has_ended_and_doubts_are_bounded() -> None:
    source, asked = after(OPEN, events.DoubtReceived("ended", 3))
    assert asked == (effects.Inspect(1, Chunks.of([3])),)
    for chunk in range(100):
        source, _ = after(source, events.DoubtReceived("ended", chunk))
    assert len(source.doubts) == MAX_DOUBTS


def test_a_chunk_that_was_never_lent_is_not_doubted() -> None:
    source, _ = after(Source(TERMS), events.ChunksShared(Chunks.first(1)))
    assert after(source, events.DoubtReceived("t1", 1)) == (source, ())
    _, asked = after(source, events.DoubtReceived("t1", 0))
    assert asked == (effects.Inspect(1, Chunks.first(1)),)
