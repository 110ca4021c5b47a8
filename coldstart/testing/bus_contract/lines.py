"""Claims that stand in line: what serves them, whom, and how each hears of it."""

from __future__ import annotations

import pytest

from coldstart.ports import Cursor, Deferred, Elected, Letter
from coldstart.testing.bus_contract.base import LAYOUT, SHARD, SHORT_SECONDS, advert, claim, granted
from coldstart.testing.bus_contract.waiting import WaitingSuite, letters, waiting


class Lines(WaitingSuite):
    """Waiting in line for a slot."""

    async def test_a_slot_that_becomes_free_goes_to_the_first_in_line_who_is_told(self) -> None:
        async with self.buses() as (bus,):
            a, b = waiting("a"), waiting("b")
            first = await self.line(bus, a, b)
            assert await bus.release(SHARD, "source", first.transfer, b"done") == advert("source", slots=1, used=1)
            (letter,) = await letters(bus, "a.mail")
            assert letter.granted is not None
            assert letter == Letter(b"", transfer=a.transfer, granted=letter.granted)
            assert letter.granted.source == advert("source", slots=1, used=1)
            assert await bus.claim(a) == letter.granted
            assert await letters(bus, "b.mail") == ()
            hellos = await letters(bus, "source.in")
            assert [found.body for found in hellos] == [b"hello", b"done", b"hello of a"]
            assert hellos[2].fence == letter.granted.fence > hellos[0].fence

    async def test_a_grant_from_the_line_names_the_truth_and_the_epoch(self) -> None:
        async with self.buses() as (bus,):
            a = waiting("a")
            first = await self.line(bus, a)
            await bus.publish_truth(SHARD, LAYOUT, "root", b"truth")
            await bus.release(SHARD, "source", first.transfer)
            (letter,) = await letters(bus, "a.mail")
            assert letter.granted is not None
            epoch = (await bus.advertise(SHARD, advert("source", slots=1), 30)).epoch
            assert (letter.granted.root, letter.granted.epoch) == ("root", epoch)

    async def test_who_named_no_inbox_finds_the_grant_by_claiming_again(self) -> None:
        async with self.buses() as (bus,):
            a = waiting("a", inbox="")
            first = await self.line(bus, a)
            await bus.release(SHARD, "source", first.transfer)
            heard = await bus.listen(SHARD, "source.in", Cursor(), 0)
            assert len(heard.letters) == 2
            assert granted(await bus.claim(a)).fence == heard.letters[-1].fence
            assert not (await bus.listen(SHARD, "source.in", heard.cursor, 0)).letters, "the hello is not sent again"

    @pytest.mark.parametrize("way", ["another", "more", "slots", "ended", "proof"])
    async def test_whatever_makes_room_serves_the_line(self, way: str) -> None:
        async with self.buses() as (bus,):
            a = waiting("a", have=3)
            first = await self.line(bus, a, have=3 if way == "more" else 8)
            match way:
                case "another":
                    await bus.advertise(SHARD, advert("another"), 30)
                case "more":
                    await bus.release(SHARD, "source", first.transfer)
                    assert await self.served(bus, a) == []
                    await bus.advertise(SHARD, advert("source", slots=1, have=4), 30)
                case "slots":
                    await bus.advertise(SHARD, advert("source", slots=2), 30)
                case "ended":
                    await bus.advertise(SHARD, advert("source", slots=1), 30, (), (first.transfer,))
                case _:
                    await bus.strike(SHARD, "source", "1", 0, b"doubt")
                    await bus.release(SHARD, "source", first.transfer)
                    assert await self.served(bus, a) == []
                    await bus.advertise(SHARD, advert("source", slots=1, proof=1), 30)
            assert await self.served(bus, a) == ["a"]

    async def test_who_waits_for_the_leader_is_served_with_its_first_chunk(self) -> None:
        async with self.buses() as (bus,):
            assert isinstance(await bus.claim(claim("leader")), Elected)
            a, b, c = waiting("a"), waiting("b"), waiting("c")
            for each in (a, b, c):
                outcome = await bus.claim(each)
                assert isinstance(outcome, Deferred)
                assert outcome.leader == "leader"
            await bus.advertise(SHARD, advert("leader", have=0), 30)
            assert await self.served(bus, a, b, c) == []
            await bus.advertise(SHARD, advert("leader", have=1), 30)
            assert await self.served(bus, a, b, c) == ["a", "b"]

    async def test_slots_that_lapsed_serve_the_line_at_the_next_renewal(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source", slots=1), 30)
            granted(await bus.claim(claim(slot_seconds=SHORT_SECONDS)))
            a = waiting("a")
            assert isinstance(await bus.claim(a), Deferred)

            async def served() -> bool:
                await bus.advertise(SHARD, advert("source", slots=1), 30)
                return await self.served(bus, a) == ["a"]

            await self.eventually(served)

    async def test_whom_the_source_does_not_suit_is_passed_over_and_keeps_its_place(self) -> None:
        async with self.buses() as (bus,):
            line = (
                waiting("source"),
                waiting("choosy", exclude=("source",)),
                waiting("other", transports=("nccl",)),
                waiting("ahead", have=8),
                waiting("right"),
            )
            first = await self.line(bus, *line, have=7)
            await bus.release(SHARD, "source", first.transfer)
            assert await self.served(bus, *line[1:]) == ["right"]
            await bus.advertise(SHARD, advert("another", slots=9), 30)
            assert await self.served(bus, *line[1:]) == ["choosy", "ahead", "right"]

    async def test_another_layout_has_a_line_of_its_own(self) -> None:
        async with self.buses() as (bus,):
            other, mine = waiting("other", layout="0f" * 16, lead_seconds=0), waiting("mine")
            first = await self.line(bus, other, mine)
            await bus.release(SHARD, "source", first.transfer)
            assert await self.served(bus, other, mine) == ["mine"]

    async def test_a_claim_that_does_not_ask_for_a_place_has_none(self) -> None:
        async with self.buses() as (bus,):
            a = waiting("a", queue_seconds=0.0)
            first = await self.line(bus, a)
            assert await bus.release(SHARD, "source", first.transfer) == advert("source", slots=1)
            assert await self.served(bus, a) == []

    async def test_a_claim_too_large_to_be_kept_is_deferred_without_a_place(self) -> None:
        async with self.buses() as (bus,):
            a = waiting("a", hello=bytes(5000))
            first = await self.line(bus, a)
            assert await bus.release(SHARD, "source", first.transfer) == advert("source", slots=1)
            granted(await bus.claim(a))
