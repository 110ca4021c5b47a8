"""One verdict per question of a group of ranks, written once."""

from __future__ import annotations

import msgspec
import pytest

from coldstart.errors import BusError
from coldstart.group import MAX_TRACES, Answer, Paper, Tally, Verdict
from coldstart.testing.bus_contract.base import BusSuite

GROUP = "run-7"
LEASE = 2.0
"""Seconds of presence in tests that let it end; a quarter of it does not pass unnoticed on a busy machine."""

YES = Answer("path", True)
NO = Answer("path", False, "no source\nat all")


def paper(member: int, *answers: Answer, seconds: float = 30.0, **changes: object) -> Paper:
    """What one of two members says."""
    usual = Paper(str(member), f"i{member}", 2, seconds, answers)
    return msgspec.structs.replace(usual, **changes)


class Ballots(BusSuite):
    """Votes, and the members that are not heard of any more."""

    async def test_members_of_groups_of_different_sizes_agree_on_nothing(self) -> None:
        async with self.buses() as (bus,):
            await bus.vote(GROUP, paper(0, YES))
            reason = "it says that the group has 3 ranks, and others say 2"
            no = Verdict("path", False, "1", reason)
            assert (await bus.vote(GROUP, paper(1, YES, size=3))).verdicts == (no,)
            assert (await bus.vote(GROUP, paper(0, YES))).verdicts == (no,), "whoever comes first is told, too"

    async def test_a_question_is_open_until_everybody_has_said_yes(self) -> None:
        async with self.buses(2) as (one, two):
            assert await one.vote(GROUP, paper(0, YES)) == Tally((), 1)
            assert await one.vote(GROUP, paper(0, YES)) == Tally((), 1), "a repeated yes counts once"
            decided = Tally((Verdict("path", True),), 2)
            assert await two.vote(GROUP, paper(1, YES)) == decided
            assert await one.vote(GROUP, paper(0)) == decided

    async def test_one_no_decides_and_tells_by_whom_and_why(self) -> None:
        async with self.buses(2) as (one, two):
            no = Verdict("path", False, "1", "no source\nat all")
            assert (await two.vote(GROUP, paper(1, NO))).verdicts == (no,)
            assert (await one.vote(GROUP, paper(0, YES))).verdicts == (no,)

    async def test_a_yes_may_be_taken_back_until_there_is_a_verdict_and_never_after_it(self) -> None:
        async with self.buses() as (bus,):
            await bus.vote(GROUP, paper(0, YES))
            no = Verdict("path", False, "0", "no source\nat all")
            assert (await bus.vote(GROUP, paper(0, NO))).verdicts == (no,)
            assert (await bus.vote(GROUP, paper(1, YES))).verdicts == (no,)
            for member in range(2):
                yes = await bus.vote("another", paper(member, YES))
            assert yes.verdicts == (Verdict("path", True),)
            assert (await bus.vote("another", paper(0, NO))).verdicts == yes.verdicts

    async def test_traces_of_members_are_told_to_who_gives_its_own(self) -> None:
        async with self.buses() as (bus,):
            own = [f"00-{member:032x}-{member:016x}-01" for member in range(1, MAX_TRACES + 3)]
            assert (await bus.vote(GROUP, paper(0, trace=own[0]))).traces == (own[0],)
            assert (await bus.vote(GROUP, paper(1, YES, trace=own[1]))).traces == (own[0], own[1])
            assert (await bus.vote(GROUP, paper(0, YES))) == Tally((Verdict("path", True),), 2)
            for member, trace in enumerate(own, 1):
                told = await bus.vote("large", paper(member, trace=trace))
            assert told.traces == tuple(own[:MAX_TRACES])
            with pytest.raises(BusError, match="no traceparent"):
                await bus.vote(GROUP, paper(1, trace="00-../.."))

    async def test_questions_and_groups_are_apart(self) -> None:
        async with self.buses() as (bus,):
            await bus.vote(GROUP, paper(0, YES, Answer("ready", False, "broken")))
            told = await bus.vote(GROUP, paper(1, YES))
            assert told.verdicts == (Verdict("path", True), Verdict("ready", False, "0", "broken"))
            assert await bus.vote("another", paper(0)) == Tally((), 1)

    async def test_a_member_that_is_not_heard_of_any_more_is_a_no(self) -> None:
        async with self.buses() as (bus,):
            await bus.vote(GROUP, paper(1, YES, seconds=LEASE))
            for _ in range(11):
                await bus.vote(GROUP, paper(0, seconds=LEASE))
                await self.pass_time(LEASE / 10)
            told = await bus.vote(GROUP, paper(0, YES, seconds=LEASE))
            gone = Verdict("path", False, "1", "not heard of any more")
            assert told == Tally((gone,), 1)
            assert (await bus.vote(GROUP, paper(1, YES, seconds=LEASE))).verdicts == (gone,), "written once"

    async def test_a_time_in_which_nobody_was_heard_is_held_against_nobody(self) -> None:
        async with self.buses() as (bus,):
            for member in range(2):
                await bus.vote(GROUP, paper(member, seconds=LEASE))
            await self.pass_time(1.1 * LEASE)
            assert await bus.vote(GROUP, paper(0, YES, seconds=LEASE)) == Tally((), 2)
            assert (await bus.vote(GROUP, paper(1, YES, seconds=LEASE))).verdicts == (Verdict("path", True),)

    async def test_what_an_earlier_incarnation_said_is_void(self) -> None:
        async with self.buses() as (bus,):
            await bus.vote(GROUP, paper(1, YES))
            await bus.vote(GROUP, paper(1, incarnation="anew"))
            assert await bus.vote(GROUP, paper(0, YES)) == Tally((), 2)
            told = await bus.vote(GROUP, paper(1, YES, incarnation="anew"))
            assert told.verdicts == (Verdict("path", True),)

    async def test_a_verdict_that_was_heard_stands_where_the_store_knows_none(self) -> None:
        async with self.buses() as (bus,):
            heard = Verdict("path", False, "7", "long ago")
            assert (await bus.vote(GROUP, paper(0, YES, heard=(heard,)))).verdicts == (heard,)
            other = Verdict("path", True)
            assert (await bus.vote(GROUP, paper(1, YES, heard=(other,)))).verdicts == (heard,)

    async def test_votes_that_cannot_be_are_refused(self) -> None:
        async with self.buses() as (bus,):
            with pytest.raises(BusError, match="cannot name"):
                await bus.vote("a}{b", paper(0))
            with pytest.raises(BusError, match="cannot name"):
                await bus.vote(GROUP, paper(0, Answer("a/b", True)))
            with pytest.raises(BusError, match="over the limit"):
                await bus.vote(GROUP, paper(0, Answer("path", False, "x" * 600)))
            with pytest.raises(BusError, match="over the limit"):
                await bus.vote(GROUP, paper(0, *(Answer(f"q{number}", True) for number in range(17))))
