"""Doubts: who is struck, who hears of it, and what ends it."""

from __future__ import annotations

from coldstart.ports import Cursor, Deferred, Elected, Skip
from coldstart.testing.bus_contract.base import LAYOUT, SHARD, SHORT_SECONDS, BusSuite, advert, claim, granted


class Strikes(BusSuite):
    """Strikes and proofs."""

    async def test_a_struck_source_is_shown_and_passed_over_and_the_fleet_hears_it_once(self) -> None:
        async with self.buses(2) as (bus, waiting):
            await bus.advertise(SHARD, advert("doubted", slots=9), 30)
            await bus.advertise(SHARD, advert("good"), 30)
            cursor = await self.caught_up(waiting)
            await bus.strike(SHARD, "doubted", "1", 0, b"doubt")
            heard = await waiting.listen(SHARD, "in", cursor, 5)
            assert heard.fleet_changed
            await bus.strike(SHARD, "doubted", "1", 0, b"doubt")
            assert not (await waiting.listen(SHARD, "in", heard.cursor, 0)).fleet_changed
            assert await bus.adverts(SHARD) == (advert("doubted", slots=9, struck=True), advert("good"))
            given = granted(await bus.claim(claim()))
            assert given.source == advert("good", used=1)
            assert given.skipped == (Skip("doubted", "struck", LAYOUT),)

    async def test_only_a_higher_proof_ends_a_strike(self) -> None:
        async with self.buses(2) as (bus, waiting):
            await bus.advertise(SHARD, advert("source", proof=3), 30)
            await bus.strike(SHARD, "source", "1", 3, b"doubt")
            cursor = await self.caught_up(waiting)
            await bus.advertise(SHARD, advert("source", proof=3), 30)
            assert not (await waiting.listen(SHARD, "in", cursor, 0)).fleet_changed
            await bus.advertise(SHARD, advert("source", proof=3, have=5), 30)
            assert await bus.adverts(SHARD) == (advert("source", proof=3, have=5, struck=True),)
            assert isinstance(await bus.claim(claim(lead_seconds=0)), Deferred)
            cursor = await self.caught_up(waiting)
            await bus.advertise(SHARD, advert("source", proof=4), 30)
            assert (await waiting.listen(SHARD, "in", cursor, 5)).fleet_changed
            assert granted(await bus.claim(claim())).source == advert("source", proof=4, used=1)

    async def test_a_strike_that_comes_after_the_new_proof_changes_nothing(self) -> None:
        async with self.buses(2) as (bus, waiting):
            await bus.advertise(SHARD, advert("source", proof=4), 30)
            cursor = await self.caught_up(waiting)
            await bus.strike(SHARD, "source", "1", 3, b"doubt")
            assert not (await waiting.listen(SHARD, "in", cursor, 0)).fleet_changed
            assert await bus.adverts(SHARD) == (advert("source", proof=4),)

    async def test_a_strike_beyond_the_present_proof_doubts_no_later_one(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source", proof=1), 30)
            await bus.strike(SHARD, "source", "1", 99, b"doubt")
            assert (await bus.adverts(SHARD))[0].struck
            await bus.advertise(SHARD, advert("source", proof=2), 30)
            assert not (await bus.adverts(SHARD))[0].struck

    async def test_a_struck_source_is_told_so_at_every_renewal(self) -> None:
        async with self.buses() as (bus,):
            assert not (await bus.advertise(SHARD, advert("source"), 30)).struck
            await bus.strike(SHARD, "source", "1", 0, b"doubt")
            for _ in range(2):
                assert (await bus.advertise(SHARD, advert("source"), 30)).struck
            assert not (await bus.advertise(SHARD, advert("source", proof=1), 30)).struck

    async def test_a_struck_source_hears_of_it_once(self) -> None:
        async with self.buses(2) as (bus, source):
            mine = advert("source")
            await bus.advertise(SHARD, mine, 30)
            for letter in (b"first", b"second"):
                await bus.strike(SHARD, "source", "1", 0, letter)
            heard = await source.listen(SHARD, mine.inbox, Cursor(), 5)
            assert [found.body for found in heard.letters] == [b"first"]
            await bus.advertise(SHARD, advert("source", proof=1), 30)
            await bus.strike(SHARD, "source", "1", 1, b"third")
            heard = await source.listen(SHARD, mine.inbox, heard.cursor, 5)
            assert [found.body for found in heard.letters] == [b"third"]

    async def test_a_strike_concerns_one_incarnation_only(self) -> None:
        async with self.buses(2) as (bus, waiting):
            await bus.advertise(SHARD, advert("source"), 30)
            cursor = await self.caught_up(waiting)
            await bus.strike(SHARD, "source", "other", 9, b"doubt")
            assert not (await waiting.listen(SHARD, "in", cursor, 0)).fleet_changed
            assert await bus.adverts(SHARD) == (advert("source"),)
            await bus.strike(SHARD, "source", "1", 9, b"doubt")
            await bus.advertise(SHARD, advert("source", incarnation="2"), 30)
            assert await bus.adverts(SHARD) == (advert("source", incarnation="2"),)

    async def test_an_unknown_worker_cannot_be_struck(self) -> None:
        async with self.buses(2) as (bus, waiting):
            cursor = await self.caught_up(waiting)
            await bus.strike(SHARD, "source", "1", 9, b"doubt")
            assert not (await waiting.listen(SHARD, "in", cursor, 0)).fleet_changed
            assert await bus.adverts(SHARD) == ()
            await bus.advertise(SHARD, advert("source"), 30)
            assert granted(await bus.claim(claim())).source.worker == "source"

    async def test_a_strike_is_not_shaken_off_by_withdrawing_or_lapsing(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source"), 30)
            await bus.strike(SHARD, "source", "1", 0, b"doubt")
            await bus.withdraw(SHARD, "source", "1")
            await bus.advertise(SHARD, advert("source"), SHORT_SECONDS)
            assert (await bus.adverts(SHARD))[0].struck

            async def gone() -> bool:
                return await bus.adverts(SHARD) == ()

            await self.eventually(gone)
            await bus.advertise(SHARD, advert("another"), 30)
            await bus.advertise(SHARD, advert("source"), 30)
            assert [found.struck for found in await bus.adverts(SHARD)] == [False, True]

    async def test_if_the_only_source_is_struck_the_joiner_is_elected(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source", slots=1), 30)
            await bus.strike(SHARD, "source", "1", 0, b"doubt")
            outcome = await bus.claim(claim())
            assert isinstance(outcome, Elected)
            assert outcome.skipped == (Skip("source", "struck", LAYOUT),)

    async def test_a_strike_leaves_slots_and_answers_alone(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source", slots=1), 30)
            reading, short = claim(), claim(slot_seconds=0.2)
            answer = await bus.claim(reading)
            await bus.strike(SHARD, "source", "1", 0, b"doubt")
            assert await bus.adverts(SHARD) == (advert("source", slots=1, used=1, struck=True),)
            assert await bus.claim(reading) == answer
            assert await bus.release(SHARD, "source", reading.transfer) == advert("source", slots=1, struck=True)
            await bus.advertise(SHARD, advert("source", slots=1, proof=1), 30)
            granted(await bus.claim(short))
            await bus.strike(SHARD, "source", "1", 1, b"doubt")
            await bus.advertise(SHARD, advert("source", slots=1, proof=1), 30, (short.transfer,))
            await self.pass_time(0.3)
            assert (await bus.adverts(SHARD))[0].used == 1

    async def test_what_a_worker_writes_of_itself_neither_makes_nor_ends_a_strike(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source", struck=True), 30)
            assert await bus.adverts(SHARD) == (advert("source"),)
            await bus.strike(SHARD, "source", "1", 0, b"doubt")
            await bus.advertise(SHARD, advert("source", struck=False), 30)
            assert (await bus.adverts(SHARD))[0].struck
