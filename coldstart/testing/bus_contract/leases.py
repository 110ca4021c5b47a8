"""What ends by itself, and what ends when it is said: adverts, slots, withdrawals."""

from __future__ import annotations

import pytest

from coldstart.ports import Cursor, Deferred, Elected, Granted
from coldstart.testing.bus_contract.base import SHARD, SHORT_SECONDS, BusSuite, advert, claim, granted


class Leases(BusSuite):
    """Lives of adverts and slots."""

    async def test_an_advert_ends_with_its_lease(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source"), SHORT_SECONDS)

            async def gone() -> bool:
                return await bus.adverts(SHARD) == ()

            await self.eventually(gone)
            assert isinstance(await bus.claim(claim()), Elected)

    async def test_a_slot_ends_with_its_lease(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source", slots=1), 30)
            granted(await bus.claim(claim(slot_seconds=SHORT_SECONDS)))

            async def free() -> bool:
                return isinstance(await bus.claim(claim()), Granted)

            await self.eventually(free)

    async def test_a_released_slot_is_free_at_once_and_the_fleet_hears_it(self) -> None:
        async with self.buses(2) as (bus, waiting):
            await bus.advertise(SHARD, advert("source", slots=1), 30)
            asked = claim()
            granted(await bus.claim(asked))
            assert isinstance(await bus.claim(claim()), Deferred)
            cursor = await self.caught_up(waiting)
            assert await bus.release(SHARD, "source", asked.transfer) == advert("source", slots=1)
            assert (await waiting.listen(SHARD, "in", cursor, 5)).fleet_changed
            assert isinstance(await bus.claim(claim()), Granted)
            assert await bus.release(SHARD, "source", asked.transfer) == advert("source", slots=1, used=1)
            assert await bus.release(SHARD, "nobody", asked.transfer) is None

    async def test_a_source_gets_a_last_letter_also_of_a_transfer_that_the_store_has_forgotten(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source"), 30)
            asked, unknown = claim(), claim()
            granted(await bus.claim(asked))
            for source, transfer in (("nobody", asked.transfer), ("", unknown.transfer)):
                await bus.release(SHARD, source, transfer, b"nowhere")
            for transfer in (unknown.transfer, asked.transfer):
                await bus.release(SHARD, "source", transfer, transfer.encode())
            heard = await bus.listen(SHARD, "source.in", Cursor(), 0)
            told = [letter.body for letter in heard.letters]
            assert told == [b"hello", unknown.transfer.encode(), asked.transfer.encode()]

    @pytest.mark.parametrize("way", ["withdrawn", "replaced"])
    async def test_the_last_letter_goes_where_the_hello_went(self, way: str) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source"), 30)
            asked = claim()
            granted(await bus.claim(asked))
            if way == "withdrawn":
                await bus.withdraw(SHARD, "source", "1")
            else:
                await bus.advertise(SHARD, advert("source", incarnation="2", inbox="source.in2"), 30)
            now = await bus.release(SHARD, "source", asked.transfer, b"done")
            assert (now is None) == (way == "withdrawn")
            heard = await bus.listen(SHARD, "source.in", Cursor(), 0)
            assert [letter.body for letter in heard.letters] == [b"hello", b"done"]

    async def test_a_release_without_a_letter_delivers_none(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source"), 30)
            asked = claim()
            granted(await bus.claim(asked))
            await bus.release(SHARD, "source", asked.transfer)
            assert len((await bus.listen(SHARD, "source.in", Cursor(), 0)).letters) == 1

    async def test_a_source_frees_the_slots_of_transfers_that_are_over(self) -> None:
        async with self.buses(2) as (bus, waiting):
            await bus.advertise(SHARD, advert("source", slots=2), 30)
            over, going = claim(), claim()
            for asked in (over, going):
                granted(await bus.claim(asked))
            cursor = await self.caught_up(waiting)
            await bus.advertise(SHARD, advert("source", slots=2), 30, (going.transfer,), (over.transfer, "unknown"))
            assert await bus.adverts(SHARD) == (advert("source", slots=2, used=1),)
            assert (await waiting.listen(SHARD, "in", cursor, 5)).fleet_changed
            assert await bus.release(SHARD, "source", over.transfer) == advert("source", slots=2, used=1)

    async def test_a_new_incarnation_has_lent_nothing(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source"), 30)
            granted(await bus.claim(claim()))
            await bus.advertise(SHARD, advert("source", incarnation="2", inbox="source.in2"), 30)
            assert (await bus.adverts(SHARD))[0].used == 0

    async def test_withdrawing_is_immediate_idempotent_and_heard(self) -> None:
        async with self.buses(2) as (bus, waiting):
            await bus.advertise(SHARD, advert("source"), 30)
            cursor = await self.caught_up(waiting)
            await bus.withdraw(SHARD, "source", "1")
            assert await bus.adverts(SHARD) == ()
            assert (await waiting.listen(SHARD, "in", cursor, 5)).fleet_changed
            await bus.withdraw(SHARD, "source", "1")

    async def test_a_late_withdrawal_leaves_the_next_incarnation_alone(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source", incarnation="2"), 30)
            await bus.withdraw(SHARD, "source", "1")
            assert [found.incarnation for found in await bus.adverts(SHARD)] == ["2"]

    async def test_a_transfer_that_goes_on_keeps_its_slot(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source"), 30)
            short, forgotten = claim(slot_seconds=0.2), claim(slot_seconds=0.2)
            granted(await bus.claim(short))
            granted(await bus.claim(forgotten))
            await bus.advertise(SHARD, advert("source"), 30, (short.transfer, "never-claimed"))
            await self.pass_time(0.3)
            assert (await bus.adverts(SHARD))[0].used == 1

    async def test_shards_with_adverts_are_listed(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise("b", advert("source"), 30)
            await bus.advertise("a", advert("source"), 30)
            assert await bus.shards() == ("a", "b")
