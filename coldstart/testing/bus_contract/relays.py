"""Sources that are not complete, sources that are near, and sources that are asked for by name."""

from __future__ import annotations

import msgspec
import pytest

from coldstart.ports import Claim, Deferred, Elected, Skip
from coldstart.testing.bus_contract.base import LAYOUT, SHARD, BusSuite, advert, claim, granted


class Relays(BusSuite):
    """Progress, nearness, preference."""

    @pytest.mark.parametrize(("have", "usable"), [(0, True), (2, True), (3, False), (8, False)])
    async def test_a_source_that_still_receives_must_have_more_than_the_joiner(self, have: int, usable: bool) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("relay", have=3), 30)
            outcome = await bus.claim(claim(have=have))
            if usable:
                assert granted(outcome).source == advert("relay", have=3, used=1)
            else:
                assert isinstance(outcome, Elected)
                assert outcome.skipped == (Skip("relay", "behind", LAYOUT),)

    async def test_a_complete_source_suits_everybody(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source", have=8), 30)
            granted(await bus.claim(claim(have=8)))

    async def test_what_nobody_could_use_comes_before_behind_and_busy_after(self) -> None:
        async with self.buses() as (bus,):
            for each in (
                advert("behind", have=3, slots=0),
                advert("doubted", have=3),
                advert("empty", have=0),
                advert("failed", have=3),
            ):
                await bus.advertise(SHARD, each, 30)
            await bus.strike(SHARD, "doubted", "1", 0, b"doubt")
            outcome = await bus.claim(claim(have=3, exclude=("failed",), lead_seconds=0))
            assert isinstance(outcome, Deferred)
            reasons = {skip.worker: skip.reason for skip in outcome.skipped}
            assert reasons == {"behind": "behind", "doubted": "struck", "empty": "empty", "failed": "excluded"}

    async def test_the_nearest_source_is_taken_then_the_less_loaded(self) -> None:
        async with self.buses() as (bus,):
            for each in (
                advert("far", host="h9", slots=9),
                advert("near", host="h2", rack="r1", slots=1),
                advert("here", host="h1", rack="r9", slots=1),
            ):
                await bus.advertise(SHARD, each, 30)
            taken = [granted(await bus.claim(claim(host="h1", rack="r1"))).source.worker for _ in range(3)]
            assert taken == ["here", "near", "far"]

    @pytest.mark.parametrize("changes", [{}, {"host": "h1"}, {"rack": "r1"}])
    async def test_who_does_not_say_where_it_is_is_near_to_nobody(self, changes: dict[str, str]) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("small", host="", rack="", slots=1), 30)
            await bus.advertise(SHARD, advert("large", host="h9", rack="r9", slots=9), 30)
            asked: Claim = msgspec.structs.replace(claim(), **changes)
            assert granted(await bus.claim(asked)).source.worker == "large"

    async def test_a_preferred_source_beats_every_ranking_and_the_first_usable_one_wins(self) -> None:
        async with self.buses() as (bus,):
            for each in (
                advert("here", host="h1", slots=9),
                advert("full", slots=0),
                advert("liked", have=1, slots=1),
                advert("other", slots=1),
            ):
                await bus.advertise(SHARD, each, 30)
            asked: dict[str, object] = {"host": "h1", "prefer": ("unknown", "full", "liked", "other")}
            given = granted(await bus.claim(claim("joiner", **asked)))
            assert (given.source.worker, given.skipped) == ("liked", (Skip("full", "busy", LAYOUT),))
            taken = [granted(await bus.claim(claim("joiner", **asked))).source.worker for _ in range(2)]
            assert taken == ["other", "here"]

    async def test_a_preference_makes_nobody_usable(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("relay", have=3), 30)
            asked = claim(have=3, prefer=("relay",))
            assert isinstance(await bus.claim(asked), Elected)
