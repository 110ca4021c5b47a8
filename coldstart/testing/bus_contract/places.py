"""Places in line: in which order they are served, who keeps one, who gives one up, and who would rather wait."""

from __future__ import annotations

import msgspec
import pytest

from coldstart.ports import Conflicted, Deferred, Elected, Granted, Skip
from coldstart.testing.bus_contract.base import LAYOUT, SHARD, SHORT_SECONDS, advert, claim, granted
from coldstart.testing.bus_contract.waiting import WaitingSuite, letters, waiting

MAX_GRANTS = 8
"""So many are served by one operation; the rest by the next one."""


class Places(WaitingSuite):
    """Order, patience and sharing."""

    async def test_a_repeated_claim_keeps_its_place_and_replaces_what_it_asks_for(self) -> None:
        async with self.buses() as (bus,):
            a, b, c = waiting("a"), waiting("b"), waiting("c")
            first = await self.line(bus, a, b, c)
            assert isinstance(await bus.claim(msgspec.structs.replace(a, exclude=("source",))), Deferred)
            await bus.release(SHARD, "source", first.transfer)
            assert await self.served(bus, a, b, c) == ["b"]
            assert isinstance(await bus.claim(msgspec.structs.replace(a, hello=b"new")), Deferred)
            await bus.release(SHARD, "source", b.transfer)
            assert await self.served(bus, a, b, c) == ["a", "b"]
            assert (await letters(bus, "source.in"))[-1].body == b"new"

    async def test_a_place_is_lost_when_its_time_is_over(self) -> None:
        async with self.buses() as (bus,):
            a, b = waiting("a", queue_seconds=SHORT_SECONDS), waiting("b")
            first = await self.line(bus, a, b)
            await self.pass_time(2 * SHORT_SECONDS)
            await bus.release(SHARD, "source", first.transfer)
            assert await self.served(bus, a, b) == ["b"]
            assert isinstance(await bus.claim(a), Deferred)

    async def test_claiming_again_keeps_the_place_for_longer(self) -> None:
        async with self.buses() as (bus,):
            a = waiting("a", queue_seconds=SHORT_SECONDS)
            first = await self.line(bus, a, waiting("b"))
            await bus.claim(msgspec.structs.replace(a, queue_seconds=30.0))
            await self.pass_time(2 * SHORT_SECONDS)
            await bus.release(SHARD, "source", first.transfer)
            assert await self.served(bus, a) == ["a"]

    @pytest.mark.parametrize("way", ["released", "asked for none"])
    async def test_a_place_can_be_given_up(self, way: str) -> None:
        async with self.buses() as (bus,):
            a, b = waiting("a"), waiting("b")
            first = await self.line(bus, a, b)
            if way == "released":
                assert await bus.release(SHARD, "", a.transfer) is None
            else:
                await bus.claim(msgspec.structs.replace(a, queue_seconds=0.0))
            await bus.release(SHARD, "source", first.transfer)
            assert await self.served(bus, a, b) == ["b"]

    async def test_giving_up_a_place_gives_back_what_was_granted_meanwhile(self) -> None:
        async with self.buses() as (bus,):
            a, b = waiting("a"), waiting("b")
            first = await self.line(bus, a, b)
            await bus.release(SHARD, "source", first.transfer)
            assert await bus.release(SHARD, "", a.transfer, b"bye") == advert("source", slots=1, used=1)
            assert await self.served(bus, a, b) == ["a", "b"]
            assert [each.body for each in await letters(bus, "source.in")][-2:] == [b"bye", b"hello of b"]

    async def test_who_waits_is_elected_when_the_leader_is_gone_and_leaves_the_line(self) -> None:
        async with self.buses() as (bus,):
            assert isinstance(await bus.claim(claim("leader", lead_seconds=30)), Elected)
            a, b = waiting("a", lead_seconds=30.0), waiting("b", lead_seconds=30.0)
            for each in (a, b):
                assert isinstance(await bus.claim(each), Deferred)
            await bus.lead(SHARD, LAYOUT, "leader", 0)
            assert isinstance(await bus.claim(a), Elected)
            outcome = await bus.claim(b)
            assert isinstance(outcome, Deferred)
            assert outcome.leader == "a"
            await bus.advertise(SHARD, advert("a", slots=9), 30)
            assert await self.served(bus, a, b) == ["b"]

    async def test_nobody_is_served_in_a_conflict(self) -> None:
        async with self.buses() as (bus,):
            a = waiting("a")
            first = await self.line(bus, a)
            for root in ("r1", "r2"):
                await bus.publish_truth(SHARD, LAYOUT, root, b"truth")
            await bus.release(SHARD, "source", first.transfer)
            assert await self.served(bus, a) == []
            assert isinstance(await bus.claim(a), Conflicted)

    async def test_a_new_claim_overtakes_nobody_whom_the_source_would_suit(self) -> None:
        """Room that came by mere lapse of time is found by whoever asks first, and yet goes to who was first."""
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source", slots=1), 30)
            granted(await bus.claim(claim(slot_seconds=SHORT_SECONDS)))
            unsuited, suited = waiting("unsuited", exclude=("source",)), waiting("suited")
            for each in (unsuited, suited):
                assert isinstance(await bus.claim(each), Deferred)
            await self.pass_time(2 * SHORT_SECONDS)
            outcome = await bus.claim(claim("late"))
            assert isinstance(outcome, Deferred)
            assert Skip("source", "busy", LAYOUT) in outcome.skipped
            assert await self.served(bus, unsuited, suited) == ["suited"]

    async def test_a_new_claim_may_overtake_whom_the_source_does_not_suit(self) -> None:
        async with self.buses() as (bus,):
            first = await self.line(bus, waiting("a", exclude=("source",)))
            await bus.release(SHARD, "source", first.transfer)
            granted(await bus.claim(claim("late")))

    async def test_one_operation_serves_a_few_and_the_next_ones_the_rest(self) -> None:
        async with self.buses() as (bus,):
            line = [waiting(f"w{number:02d}") for number in range(2 * MAX_GRANTS + 1)]
            await self.line(bus, *line)
            for served in (MAX_GRANTS, 2 * MAX_GRANTS, len(line)):
                await bus.advertise(SHARD, advert("source", slots=99), 30)
                assert await self.served(bus, *line) == [each.worker for each in line[:served]]

    # ------------------------------------------------------------------------------------- sharing

    async def test_who_would_rather_not_share_waits_and_is_not_elected(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source", slots=2), 30)
            first = waiting("first", share_seconds=30.0)
            granted(await bus.claim(first))
            a = waiting("a", share_seconds=30.0)
            outcome = await bus.claim(a)
            assert isinstance(outcome, Deferred)
            assert outcome.skipped == (Skip("source", "shared", LAYOUT),)
            granted(await bus.claim(claim("careless")))
            outcome = await bus.claim(a)
            assert isinstance(outcome, Deferred)
            assert outcome.skipped == (Skip("source", "busy", LAYOUT),)
            await bus.advertise(SHARD, advert("first", have=1), 30)
            assert await self.served(bus, a) == ["a"]

    async def test_who_would_rather_not_share_does_so_after_its_time_in_line(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source", slots=3), 30)
            granted(await bus.claim(claim()))
            asking, told = waiting("asking", share_seconds=SHORT_SECONDS), waiting("told", share_seconds=SHORT_SECONDS)
            for each in (asking, told):
                assert isinstance(await bus.claim(each), Deferred)
            await self.pass_time(2 * SHORT_SECONDS)
            assert isinstance(await bus.claim(asking), Granted)
            await bus.advertise(SHARD, advert("source", slots=3), 30)
            assert await self.served(bus, asking, told) == [], "the line has just moved"
            await self.pass_time(2 * SHORT_SECONDS)
            await bus.advertise(SHARD, advert("source", slots=3), 30)
            assert await self.served(bus, asking, told) == ["told"]

    async def test_a_source_with_much_room_is_shared_by_one_more_at_a_time(self) -> None:
        async with self.buses() as (bus,):
            a, b = waiting("a", share_seconds=SHORT_SECONDS), waiting("b", share_seconds=SHORT_SECONDS)
            await self.line(bus, a, b)
            for served in (["a"], ["a", "b"]):
                await self.pass_time(2 * SHORT_SECONDS)
                await bus.advertise(SHARD, advert("source", slots=9), 30)
                assert await self.served(bus, a, b) == served

    async def test_a_grant_of_another_layout_makes_nobody_wait_longer(self) -> None:
        async with self.buses() as (bus,):
            a = waiting("a", share_seconds=SHORT_SECONDS)
            await self.line(bus, a)
            await bus.advertise(SHARD, advert("other", layout="0f" * 16), 30)
            await self.pass_time(2 * SHORT_SECONDS)
            granted(await bus.claim(claim(layout="0f" * 16)))
            await bus.advertise(SHARD, advert("source", slots=9), 30)
            assert await self.served(bus, a) == ["a"]

    async def test_a_chain_forms_where_nobody_wants_to_share(self) -> None:
        """Each is served by who came before it, as soon as that one has something to lend."""
        async with self.buses() as (bus,):
            line = [waiting(f"w{number}", share_seconds=30.0) for number in range(4)]
            await bus.advertise(SHARD, advert("source", slots=4), 30)
            sources = [granted(await bus.claim(line[0])).source.worker]
            for each in line[1:]:
                assert isinstance(await bus.claim(each), Deferred)
            for number in range(3):
                await bus.advertise(SHARD, advert(f"w{number}", have=1), 30)
                sources.append(granted(await bus.claim(line[number + 1])).source.worker)
            assert sources == ["source", "w0", "w1", "w2"]
