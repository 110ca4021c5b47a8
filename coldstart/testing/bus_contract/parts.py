"""Parts of a stream: who is granted one, of which source, and when a source lends several at once."""

from __future__ import annotations

import msgspec
import pytest

from coldstart.bus.limits import SCAN
from coldstart.errors import BusError
from coldstart.ports import Bus, Claim, Deferred, Elected, Granted, Skip
from coldstart.testing.bus_contract.base import LAYOUT, SHARD, SHORT_SECONDS, advert, claim, granted
from coldstart.testing.bus_contract.waiting import WaitingSuite, letters, waiting


class Parts(WaitingSuite):
    """Grants of one part each."""

    # ------------------------------------------------------------------- claims that name a part

    @pytest.mark.parametrize(("parts", "suited"), [((), (0, 1)), ((0,), (0,)), ((1,), (1,)), ((1, 0), (0, 1))])
    async def test_a_part_comes_from_who_has_some_of_it(self, parts: tuple[int, ...], suited: tuple[int, ...]) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("relay", have=3, parts=parts), 30)
            for part in (0, 1):
                outcome = await bus.claim(claim(part=part))
                if part in suited:
                    assert granted(outcome).part == part
                    assert granted(outcome).source.parts == parts
                else:
                    assert isinstance(outcome, Deferred)
                    assert outcome.skipped == (Skip("relay", "part", LAYOUT),)

    async def test_how_much_a_joiner_has_does_not_count_where_it_asks_for_a_part(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("relay", have=1, parts=(0,)), 30)
            assert granted(await bus.claim(claim(part=0, have=4))).part == 0

    async def test_what_nobody_could_use_comes_before_part_and_busy_after(self) -> None:
        async with self.buses() as (bus,):
            for name, changes in {"lacking": {"slots": 0}, "doubted": {}, "empty": {"have": 0}, "failed": {}}.items():
                await bus.advertise(SHARD, advert(name, parts=(1,), **changes), 30)
            await bus.strike(SHARD, "doubted", "1", 0, b"doubt")
            outcome = await bus.claim(claim(part=0, exclude=("failed",)))
            assert isinstance(outcome, Deferred)
            reasons = {skip.worker: skip.reason for skip in outcome.skipped}
            assert reasons == {"lacking": "part", "doubted": "struck", "empty": "empty", "failed": "excluded"}

    async def test_who_asks_for_a_part_is_never_elected_and_hears_who_leads(self) -> None:
        async with self.buses() as (bus,):
            for leader in ("", "leader"):
                outcome = await bus.claim(claim(part=1, lead_seconds=30))
                assert isinstance(outcome, Deferred)
                assert outcome.leader == leader
                await bus.claim(claim("leader", lead_seconds=30))

    async def test_who_waits_for_a_part_is_served_with_its_first_chunk(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("relay", have=1, parts=(0,)), 30)
            a = waiting("a", part=1)
            assert isinstance(await bus.claim(a), Deferred)
            await bus.advertise(SHARD, advert("relay", have=2, parts=(0, 1)), 30)
            assert await self.told(bus, a) == [1]

    @pytest.mark.parametrize("changes", [{"part": 2}, {"part": -2}, {"crowd": -1}, {"crowd": 65}])
    async def test_a_part_and_a_crowd_that_cannot_be_are_refused(self, changes: dict[str, int]) -> None:
        async with self.buses() as (bus,):
            with pytest.raises(BusError, match="cannot be"):
                await bus.claim(claim("joiner", **changes))
            for part in (-1, 2):
                with pytest.raises(BusError, match="cannot be"):
                    await bus.advertise(SHARD, advert("source", parts=(0, part)), 30)

    # ---------------------------------------------------------------------------------- crowds

    @pytest.mark.parametrize("others", [0, 2, 3, 4])
    async def test_so_many_others_in_line_are_a_crowd(self, others: int) -> None:
        async with self.buses() as (bus,):
            asked = waiting("asked", crowd=3)
            assert isinstance(await bus.claim(asked), Deferred)
            await self.crowd(bus, others)
            for layout in ("0f" * 16, LAYOUT):
                for number in range(3):
                    brief = claim(f"brief{number}", layout=layout, queue_seconds=SHORT_SECONDS, lead_seconds=0)
                    assert isinstance(await bus.claim(brief), Deferred)
                    elsewhere = claim(f"elsewhere{number}", layout="0f" * 16, queue_seconds=30, lead_seconds=0)
                    assert isinstance(await bus.claim(elsewhere), Deferred)
            await self.pass_time(2 * SHORT_SECONDS)
            await bus.advertise(SHARD, advert("source", slots=1), 30)
            assert (granted(await bus.claim(asked)).part >= 0) == (others >= 3)

    @pytest.mark.parametrize("crowd", [0, 1])
    async def test_a_claim_that_need_not_wait_is_in_the_crowd_too_if_it_says_so(self, crowd: int) -> None:
        async with self.buses() as (bus,):
            await self.crowd(bus, 1)
            await bus.advertise(SHARD, advert("source", slots=1), 30)
            assert (granted(await bus.claim(claim(crowd=crowd))).part >= 0) == bool(crowd)

    async def test_a_part_is_told_in_the_letter_and_again_when_asked(self) -> None:
        async with self.buses() as (bus,):
            a = waiting("a", crowd=1)
            assert isinstance(await bus.claim(a), Deferred)
            await self.crowd(bus, 1)
            await bus.advertise(SHARD, advert("source", slots=1), 30)
            answer = granted(await bus.claim(a))
            assert [letter.granted for letter in await letters(bus, "a.mail")] == [answer]
            assert answer.part == 0

    async def test_a_crowd_is_served_by_twice_as_many_with_every_hop(self) -> None:
        async with self.buses() as (bus,):
            line = [waiting(f"w{number}", crowd=1, share_seconds=30.0) for number in range(7)]
            for each in line:
                assert isinstance(await bus.claim(each), Deferred)
            await bus.advertise(SHARD, advert("source"), 30)
            assert await self.told(bus, *line) == [0, 1]
            for part in (0, 1):
                await bus.advertise(SHARD, advert(f"w{part}", have=1, parts=(part,)), 30)
            assert await self.told(bus, *line) == [0, 1, 0, 1, 0, 1]
            await bus.advertise(SHARD, advert("w2", have=1, parts=(0,)), 30)
            assert await self.told(bus, *line) == [0, 1, 0, 1, 0, 1, 0]

    @pytest.mark.parametrize(
        ("last", "share", "part"), [(0, 30.0, 0), (1, 30.0, 0), (0, 0.0, -1), (0, SHORT_SECONDS, -1), (-1, 30.0, -1)]
    )
    async def test_a_crowd_lasts_while_parts_were_granted_lately(self, last: int, share: float, part: int) -> None:
        async with self.buses() as (bus,):
            for name in ("source", "another", "third"):
                await bus.advertise(SHARD, advert(name), 30)
            granted(await bus.claim(claim(part=last)))
            await self.pass_time(2 * SHORT_SECONDS)
            assert granted(await bus.claim(claim(crowd=8, share_seconds=share))).part == part
            assert granted(await bus.claim(claim(crowd=0, share_seconds=share))).part == -1

    async def test_a_crowd_at_another_layout_is_none_here(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("elsewhere", layout="0f" * 16), 30)
            await bus.advertise(SHARD, advert("source"), 30)
            granted(await bus.claim(claim(part=0, layout="0f" * 16)))
            assert granted(await bus.claim(claim(crowd=8, share_seconds=30.0))).part == -1

    # ----------------------------------------------------------------------------------- roles

    @pytest.mark.parametrize(
        ("parts", "told"), [((), [0, 1, 0, 1]), ((1, 0), [0, 1, 0, 1]), ((0,), [0, 0]), ((1,), [1, 1])]
    )
    async def test_a_crowd_takes_the_parts_by_turns_and_passes_over_who_lacks_them(
        self, parts: tuple[int, ...], told: list[int]
    ) -> None:
        async with self.buses() as (bus,):
            line = [waiting(f"w{number}", crowd=1, share_seconds=30.0) for number in range(4)]
            for each in line:
                assert isinstance(await bus.claim(each), Deferred)
            await bus.advertise(SHARD, advert("source", slots=4, parts=parts), 30)
            assert await self.told(bus, *line) == told

    @pytest.mark.parametrize(
        ("other", "role"),
        [({}, 1), ({"crowd": 0}, 1), ({"part": 0}, 0), ({"layout": "0f" * 16}, 0), ({"queue_seconds": 0.0}, 0)],
    )
    async def test_only_who_comes_to_the_same_line_for_everything_takes_a_turn(
        self, other: dict[str, object], role: int
    ) -> None:
        async with self.buses() as (bus,):
            first, asked = waiting("first", transports=("none",), **other), waiting("asked", crowd=1)
            for _ in range(2):
                assert isinstance(await bus.claim(first), Deferred)
            await bus.release(SHARD, "", first.transfer)
            assert isinstance(await bus.claim(asked), Deferred)
            await self.crowd(bus, 1)
            await bus.advertise(SHARD, advert("source"), 30)
            assert await self.told(bus, asked) == [role]

    async def test_who_asks_again_keeps_its_part(self) -> None:
        async with self.buses() as (bus,):
            asked = waiting("asked", crowd=1)
            assert isinstance(await bus.claim(asked), Deferred)
            await self.crowd(bus, 1)
            assert isinstance(await bus.claim(asked), Deferred)
            await bus.advertise(SHARD, advert("relay", parts=(1,)), 30)
            outcome = await bus.claim(asked)
            assert isinstance(outcome, Deferred)
            assert outcome.skipped == (Skip("relay", "part", LAYOUT),)
            await bus.advertise(SHARD, advert("relay", parts=(0, 1)), 30)
            assert granted(await bus.claim(asked)).part == 0

    async def test_who_stands_nowhere_takes_a_turn_too(self) -> None:
        async with self.buses() as (bus,):
            await self.crowd(bus, 1)
            await bus.advertise(SHARD, advert("source", slots=4), 30)
            assert [granted(await bus.claim(claim(crowd=1))).part for _ in range(2)] == [1, 0]

    @pytest.mark.parametrize("slots", [0, 2])
    @pytest.mark.parametrize("queue_seconds", [0.0, 30.0])
    async def test_for_want_of_its_part_nobody_is_elected_but_hears_who_is(
        self, slots: int, queue_seconds: float
    ) -> None:
        async with self.buses() as (bus,):
            await self.crowd(bus, 2)
            await bus.advertise(SHARD, advert("relay", have=3, slots=slots, parts=(1,)), 30)
            asked = claim(crowd=2, lead_seconds=30.0, queue_seconds=queue_seconds)
            for leader in ("", "leader", ""):
                outcome = await bus.claim(asked)
                assert isinstance(outcome, Deferred)
                assert outcome.leader == leader
                assert outcome.skipped == (Skip("relay", "part", LAYOUT),)
                assert await bus.lead(SHARD, LAYOUT, "leader", 0.0 if leader else 30.0)

    async def test_of_a_crowd_whose_parts_are_nowhere_whoever_has_most_is_elected(self) -> None:
        async with self.buses() as (bus,):
            await self.crowd(bus, 2)
            for name, have in (("least", 2), ("most", 3)):
                await bus.advertise(SHARD, advert(name, have=have, parts=(1,)), 30)
            for name, have in (("none", 0), ("least", 2)):
                assert isinstance(await bus.claim(claim(name, have=have, crowd=2, lead_seconds=30.0)), Deferred)
            assert isinstance(await bus.claim(claim("most", have=3, crowd=2, lead_seconds=30.0)), Elected)

    async def test_without_a_crowd_whoever_waits_for_its_part_takes_everything(self) -> None:
        async with self.buses() as (bus,):
            gone, asked = waiting("gone", transports=("none",)), waiting("asked", crowd=1)
            assert isinstance(await bus.claim(gone), Deferred)
            await bus.advertise(SHARD, advert("relay", parts=(0,)), 30)
            assert isinstance(await bus.claim(asked), Deferred)
            await bus.release(SHARD, "", gone.transfer)
            assert granted(await bus.claim(asked)).part == -1

    async def test_who_alone_has_the_part_is_found_behind_many_who_lack_it(self) -> None:
        async with self.buses() as (bus,):
            await self.crowd(bus, 2)
            for number in range(SCAN):
                await bus.advertise(SHARD, advert(f"lacking{number}", parts=(1,)), 30)
            await bus.advertise(SHARD, advert("z", parts=(0,)), 30)
            assert granted(await bus.claim(waiting("asked", crowd=2))).source.worker == "z"

    # --------------------------------------------------------------------------------- sharing

    @pytest.mark.parametrize("crowded", [True, False])
    async def test_a_source_that_lends_parts_is_shared_for_everything_only(self, crowded: bool) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source", slots=4), 30)
            for part in (0, 1):
                granted(await bus.claim(waiting("joiner", part=part, share_seconds=30.0)))
            await self.crowd(bus, 1, exclude=("source",))
            outcome = await bus.claim(claim(crowd=int(crowded), share_seconds=30.0))
            if crowded:
                assert granted(outcome).part >= 0
            else:
                assert isinstance(outcome, Deferred)
                assert outcome.skipped == (Skip("source", "shared", LAYOUT),)

    @pytest.mark.parametrize("part", [-1, 0, 1])
    async def test_a_source_that_lends_everything_is_shared_for_everybody(self, part: int) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source", slots=4), 30)
            granted(await bus.claim(claim(part=0)))
            granted(await bus.claim(claim()))
            await self.crowd(bus, 1, exclude=("source",))
            outcome = await bus.claim(claim(part=part, crowd=1, share_seconds=30.0))
            assert isinstance(outcome, Deferred)
            assert outcome.skipped == (Skip("source", "shared", LAYOUT),)

    @pytest.mark.parametrize("way", ["released", "ended", "lapsed", "another incarnation"])
    async def test_a_part_that_has_ended_hides_nothing_that_is_lent_later(self, way: str) -> None:
        async with self.buses() as (bus,):
            source = advert("source", slots=9)
            await bus.advertise(SHARD, source, 30)
            granted(await bus.claim(claim(part=1)))
            asked = claim(part=0, slot_seconds=SHORT_SECONDS if way == "lapsed" else 30.0)
            granted(await bus.claim(asked))
            match way:
                case "released":
                    await bus.release(SHARD, "source", asked.transfer)
                case "ended":
                    await bus.advertise(SHARD, source, 30, (), (asked.transfer,))
                case "lapsed":
                    await self.pass_time(2 * SHORT_SECONDS)
                case _:
                    await bus.advertise(SHARD, msgspec.structs.replace(source, incarnation="2"), 30)
            others = 0 if way == "another incarnation" else 1
            assert granted(await bus.claim(claim())).source.used == others + 1
            assert isinstance(await bus.claim(claim(part=0, share_seconds=30.0)), Deferred)

    @pytest.mark.parametrize("part", [-1, 0])
    async def test_a_slot_that_is_held_stays_what_it_was(self, part: int) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source"), 30)
            asked = claim(part=part, slot_seconds=SHORT_SECONDS)
            granted(await bus.claim(asked))
            await bus.advertise(SHARD, advert("source"), 30, (asked.transfer,))
            await self.pass_time(2 * SHORT_SECONDS)
            outcome = await bus.claim(claim(part=1, share_seconds=30.0))
            assert isinstance(outcome, Granted if part >= 0 else Deferred)

    async def test_a_slot_that_is_granted_again_is_what_it_was_granted_for_last(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source", slots=3), 30)
            asked = claim(part=0, slot_seconds=SHORT_SECONDS)
            granted(await bus.claim(asked))
            await bus.advertise(SHARD, advert("source", slots=3), 30, (asked.transfer,))
            await self.pass_time(2 * SHORT_SECONDS)
            assert granted(await bus.claim(msgspec.structs.replace(asked, part=-1))).source.used == 1
            assert isinstance(await bus.claim(claim(part=1, share_seconds=30.0)), Deferred)

    # ------------------------------------------------------------------------------------ hands

    async def crowd(self, bus: Bus, count: int, **changes: object) -> None:
        """Put ``count`` claims in line whom no source suits."""
        for number in range(count):
            each = waiting(f"crowd{number}", transports=("none",), **changes)
            assert isinstance(await bus.claim(each), Deferred)

    async def told(self, bus: Bus, *claims: Claim) -> list[int]:
        """The parts that ``claims`` have been told of, in their order."""
        found = [letter.granted for each in claims for letter in await letters(bus, each.inbox)]
        return [each.part for each in found if each is not None]
