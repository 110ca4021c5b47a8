"""How a claim finds a source: one slot, one hello, and a reason for everybody passed over."""

from __future__ import annotations

import anyio
import msgspec

from coldstart.ports import Bus, ClaimOutcome, Cursor, Deferred, Elected, Granted, Skip
from coldstart.testing.bus_contract.base import SHARD, BusSuite, advert, claim, granted


class Finding(BusSuite):
    """Claims, slots and choice."""

    async def test_it_is_a_bus(self) -> None:
        async with self.buses() as (bus,):
            assert bus.local_address
            assert await bus.adverts(SHARD) == ()
            assert await bus.shards() == ()

    async def test_a_claim_takes_a_slot_and_delivers_the_hello_with_its_fence(self) -> None:
        async with self.buses(2) as (source, joiner):
            standing = await source.advertise(SHARD, advert("source"), 30)
            given = granted(await joiner.claim(claim(hello=b"\x00hi\xff")))
            assert given.source == advert("source", used=1)
            assert given.epoch == standing.epoch
            assert given.fence >= 1
            heard = await source.listen(SHARD, "source.in", Cursor(), 5)
            assert [(letter.body, letter.fence) for letter in heard.letters] == [(b"\x00hi\xff", given.fence)]
            assert await joiner.adverts(SHARD) == (advert("source", used=1),)

    async def test_one_advert_is_told_as_among_all_of_them_while_it_lives(self) -> None:
        async with self.buses(2) as (source, joiner):
            await source.advertise(SHARD, advert("other"), 30)
            await source.advertise(SHARD, advert("source", slots=3), 30)
            granted(await joiner.claim(claim(prefer=("source",))))
            await joiner.strike(SHARD, "source", "1", 0, b"doubt")
            assert await joiner.advert(SHARD, "source") == (await joiner.adverts(SHARD))[1]
            assert await joiner.advert(SHARD, "source") == advert("source", slots=3, used=1, struck=True)
            assert await joiner.advert(SHARD, "nobody") is None
            await source.withdraw(SHARD, "source", "1")
            assert await joiner.advert(SHARD, "source") is None

    async def test_a_repeated_claim_gets_the_first_answer_and_no_second_hello(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source"), 30)
            asked = claim()
            first = await bus.claim(asked)
            assert await bus.claim(asked) == first
            assert await bus.claim(msgspec.structs.replace(asked, luck=7)) == first
            heard = await bus.listen(SHARD, "source.in", Cursor(), 5)
            assert len(heard.letters) == 1
            assert (await bus.adverts(SHARD))[0].used == 1

    async def test_fences_grow(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source", slots=3), 30)
            fences = [granted(await bus.claim(claim())).fence for _ in range(3)]
            assert fences == sorted(set(fences))

    async def test_slots_are_never_lent_twice(self) -> None:
        async with self.buses(3) as buses:
            await buses[0].advertise(SHARD, advert("a", slots=2), 30)
            await buses[0].advertise(SHARD, advert("b", slots=3), 30)
            outcomes: list[ClaimOutcome] = []

            async def take(bus: Bus, number: int) -> None:
                outcomes.append(await bus.claim(claim(f"joiner{number}", luck=number)))

            async with anyio.create_task_group() as tasks:
                for number in range(12):
                    tasks.start_soon(take, buses[number % 3], number)
            lucky = [outcome for outcome in outcomes if isinstance(outcome, Granted)]
            assert sorted(each.source.worker for each in lucky) == ["a", "a", "b", "b", "b"]
            assert len({each.fence for each in lucky}) == 5
            assert all(outcome.leader == "" for outcome in outcomes if isinstance(outcome, Deferred))

    async def test_the_less_loaded_source_is_taken_then_the_larger_then_the_fuller(self) -> None:
        async with self.buses() as (bus,):
            for each in (advert("small", slots=2), advert("large", slots=4), advert("partial", slots=4, have=3)):
                await bus.advertise(SHARD, each, 30)
            taken = [granted(await bus.claim(claim(luck=luck))).source.worker for luck in range(5)]
            # 0/2 0/4 0/4 -> large, then partial; then small (0/2), then large at 1/4 again.
            assert taken == ["large", "partial", "small", "large", "partial"]

    async def test_luck_decides_between_equals(self) -> None:
        async with self.buses() as (bus,):
            for worker in ("a", "b", "c"):
                await bus.advertise(SHARD, advert(worker, slots=9), 30)
            taken: list[str] = []
            for luck in range(3):
                asked = claim(luck=luck)
                given = granted(await bus.claim(asked))
                taken.append(given.source.worker)
                await bus.release(SHARD, given.source.worker, asked.transfer)
            assert taken == ["a", "b", "c"]

    async def test_every_worker_passed_over_is_named_with_its_reason(self) -> None:
        async with self.buses() as (bus,):
            for each in (
                advert("busy", slots=0),
                advert("elsewhere", transports=("nccl",)),
                advert("doubted", slots=0, have=0),
                advert("empty", have=0, slots=0),
                advert("failed"),
                advert("foreign", layout="f0"),
                advert("good"),
            ):
                await bus.advertise(SHARD, each, 30)
            for struck in ("doubted", "elsewhere", "failed", "foreign"):
                await bus.strike(SHARD, struck, "1", 0, b"doubt")
            given = granted(await bus.claim(claim(exclude=("failed",))))
            assert given.source.worker == "good"
            assert sorted((skip.worker, skip.reason) for skip in given.skipped) == [
                ("busy", "busy"),
                ("doubted", "struck"),
                ("elsewhere", "transports"),
                ("empty", "empty"),
                ("failed", "excluded"),
                ("foreign", "layout"),
            ]
            assert Skip("foreign", "layout", "f0") in given.skipped

    async def test_a_claim_that_names_no_transports_takes_any(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source", transports=("nccl",)), 30)
            assert granted(await bus.claim(claim(transports=()))).source.worker == "source"

    async def test_nobody_is_its_own_source(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("joiner"), 30)
            outcome = await bus.claim(claim("joiner", exclude=()))
            assert isinstance(outcome, Elected)

    async def test_shards_do_not_see_each_other(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise("other", advert("source"), 30)
            assert isinstance(await bus.claim(claim()), Elected)
            assert await bus.adverts(SHARD) == ()
