"""Who reads storage for everybody where there is no source."""

from __future__ import annotations

from coldstart.ports import Deferred, Elected, Granted, Skip
from coldstart.testing.bus_contract.base import LAYOUT, SHARD, SHORT_SECONDS, BusSuite, advert, claim, granted


class Leading(BusSuite):
    """Elections and the loader's lease."""

    async def test_one_joiner_is_elected_and_the_others_wait_for_it(self) -> None:
        async with self.buses() as (bus,):
            assert isinstance(await bus.claim(claim("first")), Elected)
            assert isinstance(await bus.claim(claim("first")), Elected)
            outcome = await bus.claim(claim("second"))
            assert isinstance(outcome, Deferred)
            assert outcome.leader == "first"

    async def test_a_busy_fleet_defers_without_a_leader(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source", slots=1), 30)
            granted(await bus.claim(claim()))
            outcome = await bus.claim(claim("second"))
            assert isinstance(outcome, Deferred)
            assert outcome.leader == ""
            assert outcome.skipped == (Skip("source", "busy", LAYOUT),)

    async def test_who_asks_not_to_lead_is_not_elected(self) -> None:
        async with self.buses() as (bus,):
            assert isinstance(await bus.claim(claim(lead_seconds=0)), Deferred)
            assert isinstance(await bus.claim(claim("second")), Elected)

    async def test_excluded_workers_do_not_exist(self) -> None:
        async with self.buses() as (bus,):
            assert isinstance(await bus.claim(claim("leader")), Elected)
            await bus.advertise(SHARD, advert("leader", have=1), 30)
            assert isinstance(await bus.claim(claim("joiner", exclude=("leader",))), Elected)
            assert not await bus.lead(SHARD, LAYOUT, "leader", 3)

    async def test_a_deferred_claim_may_be_repeated_and_is_answered_anew(self) -> None:
        async with self.buses() as (bus,):
            await bus.claim(claim("leader"))
            asked = claim()
            assert isinstance(await bus.claim(asked), Deferred)
            await bus.advertise(SHARD, advert("leader", have=1), 30)
            assert isinstance(await bus.claim(asked), Granted)

    async def test_the_lead_is_renewed_by_its_holder_only_and_ends_by_itself(self) -> None:
        async with self.buses() as (bus,):
            assert isinstance(await bus.claim(claim("leader", lead_seconds=30)), Elected)
            assert not await bus.lead(SHARD, LAYOUT, "other", 3)
            assert await bus.lead(SHARD, LAYOUT, "leader", SHORT_SECONDS)

            async def free() -> bool:
                return await bus.lead(SHARD, LAYOUT, "other", 3)

            await self.eventually(free)
            assert not await bus.lead(SHARD, LAYOUT, "leader", 3)

    async def test_giving_up_the_lead_is_heard_and_elects_the_next(self) -> None:
        async with self.buses(2) as (bus, waiting):
            await bus.claim(claim("leader"))
            cursor = await self.caught_up(waiting)
            assert await bus.lead(SHARD, LAYOUT, "leader", 0)
            assert (await waiting.listen(SHARD, "in", cursor, 5)).fleet_changed
            assert isinstance(await bus.claim(claim("second")), Elected)
