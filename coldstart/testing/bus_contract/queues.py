"""What a claim in line is told for an estimate, and who is admitted to storage although there are sources."""

from __future__ import annotations

import pytest

from coldstart.errors import BusError
from coldstart.ports import MAX_HOSTS, Admission, Bus, Claim, Deferred, Elected, Queue
from coldstart.testing.bus_contract.base import LAYOUT, SHARD, SHORT_SECONDS, advert, claim, granted
from coldstart.testing.bus_contract.waiting import WaitingSuite, waiting


async def queue_of(bus: Bus, asked: Claim) -> Queue | None:
    outcome = await bus.claim(asked)
    assert isinstance(outcome, Deferred)
    return outcome.queue


class Queues(WaitingSuite):
    """The facts of a line, and the readers of storage."""

    async def test_who_stands_in_line_is_told_its_place_and_what_the_sources_are_like(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("slow", slots=1, rate=10, host="one"), 30)
            await bus.advertise(SHARD, advert("fast", slots=1, rate=2_000_000_000_000, host="two"), 30)
            for name in ("first", "second"):
                granted(await bus.claim(claim(name)))
            a, b = waiting("a"), waiting("b")
            assert await queue_of(bus, a) == Queue(0, 2, 2, 2_000_000_000_000, 0, ("two", "one"))
            assert await queue_of(bus, b) == Queue(1, 2, 2, 2_000_000_000_000, 0, ("two", "one"))
            assert await queue_of(bus, a) == Queue(0, 2, 2, 2_000_000_000_000, 0, ("two", "one"))

    async def test_one_that_stands_nowhere_is_told_nothing(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source", slots=1), 30)
            granted(await bus.claim(claim()))
            assert await queue_of(bus, claim("a")) is None

    async def test_sources_that_still_receive_are_none_to_count_on(self) -> None:
        async with self.buses() as (bus,):
            assert isinstance(await bus.claim(claim("leader")), Elected)
            await bus.advertise(SHARD, advert("leader", have=1, slots=1), 30)
            granted(await bus.claim(claim("first")))
            assert await queue_of(bus, waiting("a")) is None

    async def test_sources_that_would_not_do_do_not_count(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source", slots=1), 30)
            await bus.advertise(SHARD, advert("failed", slots=3, rate=7), 30)
            granted(await bus.claim(claim("first", exclude=("failed",))))
            assert await queue_of(bus, waiting("a", exclude=("a", "failed"))) == Queue(0, 1, 1, 0, 0, ("127.0.0.1",))

    async def test_only_so_many_hosts_are_named(self) -> None:
        async with self.buses() as (bus,):
            for number in range(MAX_HOSTS + 2):
                await bus.advertise(SHARD, advert(f"s{number}", slots=1, host=f"host{number}"), 30)
                granted(await bus.claim(claim(f"j{number}")))
            queue = await queue_of(bus, waiting("a"))
            assert queue is not None
            assert queue.slots == queue.used == MAX_HOSTS + 2
            assert queue.hosts == tuple(f"host{number}" for number in range(MAX_HOSTS))

    async def test_an_advert_tells_its_rate(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source", rate=12_500_000_000), 30)
            assert granted(await bus.claim(claim())).source.rate == 12_500_000_000

    @pytest.mark.parametrize("rate", [-1, 10**16])
    async def test_a_rate_that_cannot_be_is_refused(self, rate: int) -> None:
        async with self.buses() as (bus,):
            with pytest.raises(BusError):
                await bus.advertise(SHARD, advert("source", rate=rate), 30)

    async def test_no_more_are_admitted_to_storage_than_it_is_worth_to_them(self) -> None:
        async with self.buses() as (bus,):
            assert await bus.admit(SHARD, LAYOUT, "a", 2, 30) == Admission(True, 0)
            assert await bus.admit(SHARD, LAYOUT, "b", 2, 30) == Admission(True, 1)
            assert await bus.admit(SHARD, LAYOUT, "c", 2, 30) == Admission(False, 2)
            assert await bus.admit(SHARD, LAYOUT, "a", 2, 30) == Admission(True, 1)
            assert await bus.admit(SHARD, LAYOUT, "c", 10**18, 30) == Admission(True, 2)
            assert await bus.admit(SHARD, "other", "d", 1, 30) == Admission(True, 0)

    async def test_who_has_done_makes_room(self) -> None:
        async with self.buses() as (bus,):
            assert await bus.admit(SHARD, LAYOUT, "a", 1, 30) == Admission(True, 0)
            assert await bus.admit(SHARD, LAYOUT, "a", 1, 0) == Admission(False, 0)
            assert await bus.admit(SHARD, LAYOUT, "b", 1, 30) == Admission(True, 0)

    async def test_who_is_not_admitted_any_more_does_not_count(self) -> None:
        async with self.buses() as (bus,):
            assert (await bus.admit(SHARD, LAYOUT, "a", 1, 30)).admitted
            assert not (await bus.admit(SHARD, LAYOUT, "a", 0, 30)).admitted
            assert await bus.admit(SHARD, LAYOUT, "b", 1, 30) == Admission(True, 0)

    async def test_a_reader_that_is_not_heard_of_again_counts_no_more(self) -> None:
        async with self.buses() as (bus,):
            assert (await bus.admit(SHARD, LAYOUT, "a", 1, SHORT_SECONDS)).admitted

            async def admitted() -> bool:
                return (await bus.admit(SHARD, LAYOUT, "b", 1, 30)).admitted

            assert not await admitted()
            await self.eventually(admitted)

    async def test_who_leads_reads_storage_and_counts_once(self) -> None:
        async with self.buses() as (bus,):
            assert await bus.lead(SHARD, LAYOUT, "leader", 30)
            assert await bus.admit(SHARD, LAYOUT, "a", 1, 30) == Admission(False, 1)
            assert await bus.admit(SHARD, LAYOUT, "leader", 1, 30) == Admission(True, 0)
            assert await bus.admit(SHARD, LAYOUT, "a", 2, 30) == Admission(True, 1)

    async def test_readers_are_told_to_who_stands_in_line(self) -> None:
        async with self.buses() as (bus,):
            await self.line(bus)
            for name in ("x", "y", "a"):
                assert (await bus.admit(SHARD, LAYOUT, name, 9, 30)).admitted
            queue = await queue_of(bus, waiting("a"))
            assert queue is not None
            assert queue.readers == 2
