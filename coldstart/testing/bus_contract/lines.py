"""Claims that stand in line: who is served, in which order, how each hears of it, and who leaves."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from coldstart.ports import Bus, Claim, Conflicted, Cursor, Deferred, Elected, Granted, Letter, Skip
from coldstart.testing.bus_contract.base import LAYOUT, SHARD, SHORT_SECONDS, BusSuite, advert, claim, granted

MAX_GRANTS = 8
"""So many are served by one operation; the rest by the next one."""


def waiting(worker: str, **changes: object) -> Claim:
    """A claim that stands in line if there is no source for it now."""
    hello, inbox = f"hello of {worker}".encode(), f"{worker}.mail"
    usual = claim(worker, hello=hello, inbox=inbox, queue_seconds=30.0, lead_seconds=0.0)
    return msgspec.structs.replace(usual, **changes)


async def letters(bus: Bus, inbox: str) -> Sequence[Letter]:
    """All letters that an inbox has by now."""
    return (await bus.listen(SHARD, inbox, Cursor(), 0)).letters


class Lines(BusSuite):
    """Waiting in line for a slot."""

    async def line(self, bus: Bus, *claims: Claim, **source: object) -> Claim:
        """Put ``claims`` in line for a source whose only slot is taken; returns who took it."""
        await bus.advertise(SHARD, advert("source", slots=1, **source), 30)
        first = claim("first")
        granted(await bus.claim(first))
        for each in claims:
            assert isinstance(await bus.claim(each), Deferred)
        return first

    async def served(self, bus: Bus, *claims: Claim) -> list[str]:
        """Which of ``claims`` have been told of a grant."""
        return [each.worker for each in claims if await letters(bus, each.inbox)]

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
            fences = [letter.fence for letter in await letters(bus, "source.in")]
            assert granted(await bus.claim(a)).fence == fences[-1]
            assert len(await letters(bus, "source.in")) == 2, "the hello is not sent again"

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

    # ------------------------------------------------------------------------------- order, places

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
            assert await self.served(bus, asking, told) == ["told"]

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
