"""The contract of a Bus, as tests: what the runner relies on, whoever keeps the state.

Subclass :class:`BusContract` in a test module, give it :meth:`~BusContract.open_bus`, and run pytest
with anyio's plugin. The fake and the real bus of coldstart pass the same suite, which is what makes
the fake trustworthy. It must not look behind the port: no key, no script, no clock but its own patience.

    class TestMyBus(BusContract):
        @asynccontextmanager
        async def open_bus(self):
            server = ...
            yield lambda: MyBus.open(server)    # buses that share one empty store
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import msgspec
import pytest

from coldstart.errors import BusError
from coldstart.ports import (
    Advert,
    Bus,
    Claim,
    ClaimOutcome,
    Conflicted,
    Cursor,
    Deferred,
    Elected,
    Granted,
    Heard,
    Skip,
    Standing,
)

SHARD = "5ac1" * 8
LAYOUT = "1a40" * 8
PATIENCE_SECONDS = 10.0
AHEAD = "9999999999999-0"
"""An id that no store has given out."""
SHORT_SECONDS = 0.15
"""A lease that is meant to end; long enough to be seen alive on a busy machine."""

Connect = Callable[[], Awaitable[Bus]]
"""Opens one more bus on the same store."""


def advert(worker: str, **changes: object) -> Advert:
    """A complete source with two free slots."""
    usual = Advert(
        worker=worker,
        inbox=f"{worker}.in",
        incarnation="1",
        generation=0,
        layout=LAYOUT,
        slots=2,
        have=8,
        total=8,
        transports=("tcp",),
        host="127.0.0.1",
        device="cpu",
    )
    return msgspec.structs.replace(usual, **changes)


_transfers = itertools.count(1)


def claim(worker: str = "joiner", **changes: object) -> Claim:
    """A claim that nothing stands against, with a transfer id of its own."""
    usual = Claim(
        shard=SHARD,
        layout=LAYOUT,
        worker=worker,
        transfer=f"t{next(_transfers)}",
        hello=b"hello",
        exclude=(worker,),
        transports=("tcp",),
    )
    return msgspec.structs.replace(usual, **changes)


class BusContract:
    """Subclass it and implement :meth:`open_bus`."""

    pytestmark = pytest.mark.anyio

    def open_bus(self) -> AbstractAsyncContextManager[Connect]:
        """An empty store, and the function that opens buses on it; the suite closes the buses."""
        raise NotImplementedError

    async def pass_time(self, seconds: float) -> None:
        """Let ``seconds`` pass on the store's clock; a fake clock is simply moved."""
        await anyio.sleep(seconds)

    @asynccontextmanager
    async def buses(self, count: int = 1) -> AsyncIterator[tuple[Bus, ...]]:
        """``count`` buses on one empty store."""
        async with self.open_bus() as connect:
            opened: list[Bus] = []
            try:
                while len(opened) < count:
                    opened.append(await connect())
                yield tuple(opened)
            finally:
                for bus in opened:
                    await bus.aclose()

    async def eventually(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Let time pass in small steps until ``condition`` holds."""
        with anyio.fail_after(PATIENCE_SECONDS):
            while not await condition():
                await self.pass_time(0.03)

    # ---------------------------------------------------------------------------------- finding

    async def test_it_is_a_bus(self) -> None:
        async with self.buses() as (bus,):
            assert bus.local_address
            assert await bus.adverts(SHARD) == ()
            assert await bus.shards() == ()

    async def test_a_claim_takes_a_slot_and_delivers_the_hello_with_its_fence(self) -> None:
        async with self.buses(2) as (source, joiner):
            standing = await source.advertise(SHARD, advert("source"), 30)
            granted = _granted(await joiner.claim(claim(hello=b"\x00hi\xff")))
            assert granted.source == advert("source", used=1)
            assert granted.epoch == standing.epoch
            assert granted.fence >= 1
            heard = await source.listen(SHARD, "source.in", Cursor(), 5)
            assert [(letter.body, letter.fence) for letter in heard.letters] == [(b"\x00hi\xff", granted.fence)]
            assert await joiner.adverts(SHARD) == (advert("source", used=1),)

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
            fences = [_granted(await bus.claim(claim())).fence for _ in range(3)]
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
            granted = [outcome for outcome in outcomes if isinstance(outcome, Granted)]
            assert sorted(each.source.worker for each in granted) == ["a", "a", "b", "b", "b"]
            assert len({each.fence for each in granted}) == 5
            assert all(outcome.leader == "" for outcome in outcomes if isinstance(outcome, Deferred))

    async def test_the_less_loaded_source_is_taken_then_the_larger_then_the_fuller(self) -> None:
        async with self.buses() as (bus,):
            for each in (advert("small", slots=2), advert("large", slots=4), advert("partial", slots=4, have=3)):
                await bus.advertise(SHARD, each, 30)
            taken = [_granted(await bus.claim(claim(luck=luck))).source.worker for luck in range(5)]
            # 0/2 0/4 0/4 -> large, then partial; then small (0/2), then large at 1/4 again.
            assert taken == ["large", "partial", "small", "large", "partial"]

    async def test_luck_decides_between_equals(self) -> None:
        async with self.buses() as (bus,):
            for worker in ("a", "b", "c"):
                await bus.advertise(SHARD, advert(worker, slots=9), 30)
            taken: list[str] = []
            for luck in range(3):
                asked = claim(luck=luck)
                granted = _granted(await bus.claim(asked))
                taken.append(granted.source.worker)
                await bus.release(SHARD, granted.source.worker, asked.transfer)
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
            granted = _granted(await bus.claim(claim(exclude=("failed",))))
            assert granted.source.worker == "good"
            assert sorted((skip.worker, skip.reason) for skip in granted.skipped) == [
                ("busy", "busy"),
                ("doubted", "struck"),
                ("elsewhere", "transports"),
                ("empty", "empty"),
                ("failed", "excluded"),
                ("foreign", "layout"),
            ]
            assert Skip("foreign", "layout", "f0") in granted.skipped

    async def test_a_claim_that_names_no_transports_takes_any(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source", transports=("nccl",)), 30)
            assert _granted(await bus.claim(claim(transports=()))).source.worker == "source"

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

    # ----------------------------------------------------------------------------------- leases

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
            _granted(await bus.claim(claim(slot_seconds=SHORT_SECONDS)))

            async def free() -> bool:
                return isinstance(await bus.claim(claim()), Granted)

            await self.eventually(free)

    async def test_a_released_slot_is_free_at_once_and_the_fleet_hears_it(self) -> None:
        async with self.buses(2) as (bus, waiting):
            await bus.advertise(SHARD, advert("source", slots=1), 30)
            asked = claim()
            _granted(await bus.claim(asked))
            assert isinstance(await bus.claim(claim()), Deferred)
            cursor = await self._caught_up(waiting)
            assert await bus.release(SHARD, "source", asked.transfer) == advert("source", slots=1)
            assert (await waiting.listen(SHARD, "in", cursor, 5)).fleet_changed
            assert isinstance(await bus.claim(claim()), Granted)
            assert await bus.release(SHARD, "source", asked.transfer) == advert("source", slots=1, used=1)
            assert await bus.release(SHARD, "nobody", asked.transfer) is None

    async def test_a_source_frees_the_slots_of_transfers_that_are_over(self) -> None:
        async with self.buses(2) as (bus, waiting):
            await bus.advertise(SHARD, advert("source", slots=2), 30)
            over, going = claim(), claim()
            for asked in (over, going):
                _granted(await bus.claim(asked))
            cursor = await self._caught_up(waiting)
            await bus.advertise(SHARD, advert("source", slots=2), 30, (going.transfer,), (over.transfer, "unknown"))
            assert await bus.adverts(SHARD) == (advert("source", slots=2, used=1),)
            assert (await waiting.listen(SHARD, "in", cursor, 5)).fleet_changed
            assert await bus.release(SHARD, "source", over.transfer) == advert("source", slots=2, used=1)

    async def test_a_new_incarnation_has_lent_nothing(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source"), 30)
            _granted(await bus.claim(claim()))
            await bus.advertise(SHARD, advert("source", incarnation="2", inbox="source.in2"), 30)
            assert (await bus.adverts(SHARD))[0].used == 0

    async def test_withdrawing_is_immediate_idempotent_and_heard(self) -> None:
        async with self.buses(2) as (bus, waiting):
            await bus.advertise(SHARD, advert("source"), 30)
            cursor = await self._caught_up(waiting)
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
            _granted(await bus.claim(short))
            _granted(await bus.claim(forgotten))
            await bus.advertise(SHARD, advert("source"), 30, (short.transfer, "never-claimed"))
            await self.pass_time(0.3)
            assert (await bus.adverts(SHARD))[0].used == 1

    async def test_shards_with_adverts_are_listed(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise("b", advert("source"), 30)
            await bus.advertise("a", advert("source"), 30)
            assert await bus.shards() == ("a", "b")

    # ---------------------------------------------------------------------------------- strikes

    async def test_a_struck_source_is_shown_and_passed_over_and_the_fleet_hears_it_once(self) -> None:
        async with self.buses(2) as (bus, waiting):
            await bus.advertise(SHARD, advert("doubted", slots=9), 30)
            await bus.advertise(SHARD, advert("good"), 30)
            cursor = await self._caught_up(waiting)
            await bus.strike(SHARD, "doubted", "1", 0, b"doubt")
            heard = await waiting.listen(SHARD, "in", cursor, 5)
            assert heard.fleet_changed
            await bus.strike(SHARD, "doubted", "1", 0, b"doubt")
            assert not (await waiting.listen(SHARD, "in", heard.cursor, 0)).fleet_changed
            assert await bus.adverts(SHARD) == (advert("doubted", slots=9, struck=True), advert("good"))
            granted = _granted(await bus.claim(claim()))
            assert granted.source == advert("good", used=1)
            assert granted.skipped == (Skip("doubted", "struck", LAYOUT),)

    async def test_only_a_higher_proof_ends_a_strike(self) -> None:
        async with self.buses(2) as (bus, waiting):
            await bus.advertise(SHARD, advert("source", proof=3), 30)
            await bus.strike(SHARD, "source", "1", 3, b"doubt")
            cursor = await self._caught_up(waiting)
            await bus.advertise(SHARD, advert("source", proof=3), 30)
            assert not (await waiting.listen(SHARD, "in", cursor, 0)).fleet_changed
            await bus.advertise(SHARD, advert("source", proof=3, have=5), 30)
            assert await bus.adverts(SHARD) == (advert("source", proof=3, have=5, struck=True),)
            assert isinstance(await bus.claim(claim(lead_seconds=0)), Deferred)
            cursor = await self._caught_up(waiting)
            await bus.advertise(SHARD, advert("source", proof=4), 30)
            assert (await waiting.listen(SHARD, "in", cursor, 5)).fleet_changed
            assert _granted(await bus.claim(claim())).source == advert("source", proof=4, used=1)

    async def test_a_strike_that_comes_after_the_new_proof_changes_nothing(self) -> None:
        async with self.buses(2) as (bus, waiting):
            await bus.advertise(SHARD, advert("source", proof=4), 30)
            cursor = await self._caught_up(waiting)
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
            cursor = await self._caught_up(waiting)
            await bus.strike(SHARD, "source", "other", 9, b"doubt")
            assert not (await waiting.listen(SHARD, "in", cursor, 0)).fleet_changed
            assert await bus.adverts(SHARD) == (advert("source"),)
            await bus.strike(SHARD, "source", "1", 9, b"doubt")
            await bus.advertise(SHARD, advert("source", incarnation="2"), 30)
            assert await bus.adverts(SHARD) == (advert("source", incarnation="2"),)

    async def test_an_unknown_worker_cannot_be_struck(self) -> None:
        async with self.buses(2) as (bus, waiting):
            cursor = await self._caught_up(waiting)
            await bus.strike(SHARD, "source", "1", 9, b"doubt")
            assert not (await waiting.listen(SHARD, "in", cursor, 0)).fleet_changed
            assert await bus.adverts(SHARD) == ()
            await bus.advertise(SHARD, advert("source"), 30)
            assert _granted(await bus.claim(claim())).source.worker == "source"

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
            granted = await bus.claim(reading)
            await bus.strike(SHARD, "source", "1", 0, b"doubt")
            assert await bus.adverts(SHARD) == (advert("source", slots=1, used=1, struck=True),)
            assert await bus.claim(reading) == granted
            assert await bus.release(SHARD, "source", reading.transfer) == advert("source", slots=1, struck=True)
            await bus.advertise(SHARD, advert("source", slots=1, proof=1), 30)
            _granted(await bus.claim(short))
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

    # --------------------------------------------------------------------------- a store gone back

    async def test_an_advert_is_answered_with_the_truth_that_the_store_knows(self) -> None:
        async with self.buses() as (bus,):
            before = await bus.advertise(SHARD, advert("source"), 30)
            assert (bool(before.epoch), before.root) == (True, "")
            await bus.publish_truth(SHARD, LAYOUT, "ab", b"truth")
            assert await bus.advertise(SHARD, advert("source"), 30) == Standing(before.epoch, "ab")
            assert (await bus.advertise(SHARD, advert("other", layout="0f" * 16), 30)).root == ""

    async def test_a_listener_ahead_of_the_store_is_told_and_hears_what_comes_next(self) -> None:
        """As after a failover that lost writes: the ids that it waits for are given out again."""
        async with self.buses(2) as (bus, listener):
            await bus.advertise(SHARD, advert("source"), 30)
            await bus.send(SHARD, "in", b"before", "1")
            cursor = await self._caught_up(listener)
            for stream in ("inbox", "fleet"):
                heard = await listener.listen(SHARD, "in", msgspec.structs.replace(cursor, **{stream: AHEAD}), 5)
                assert heard.renewed
                await bus.send(SHARD, "in", b"next", stream)
                heard = await listener.listen(SHARD, "in", heard.cursor, 5)
                assert [letter.body for letter in heard.letters] == [b"next"]
                cursor = heard.cursor

    # ---------------------------------------------------------------------------------- leading

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
            _granted(await bus.claim(claim()))
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
            cursor = await self._caught_up(waiting)
            assert await bus.lead(SHARD, LAYOUT, "leader", 0)
            assert (await waiting.listen(SHARD, "in", cursor, 5)).fleet_changed
            assert isinstance(await bus.claim(claim("second")), Elected)

    # ------------------------------------------------------------------------------------ truth

    async def test_truth_is_published_once_and_named_by_claims(self) -> None:
        async with self.buses(2) as (bus, waiting):
            assert await bus.fetch_truth(SHARD, LAYOUT) is None
            cursor = await self._caught_up(waiting)
            assert await bus.publish_truth(SHARD, LAYOUT, "root1", b"\x00truth") == ("root1",)
            assert (await waiting.listen(SHARD, "in", cursor, 5)).fleet_changed
            assert await bus.publish_truth(SHARD, LAYOUT, "root1", b"\x00truth") == ("root1",)
            assert await bus.fetch_truth(SHARD, LAYOUT) == b"\x00truth"
            assert await bus.fetch_truth(SHARD, "other") is None
            outcome = await bus.claim(claim())
            assert isinstance(outcome, Elected)
            assert outcome.root == "root1"

    async def test_two_truths_are_a_conflict_and_neither_is_believed(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source"), 30)
            asked = claim()
            _granted(await bus.claim(asked))
            await bus.publish_truth(SHARD, LAYOUT, "root2", b"two")
            assert sorted(await bus.publish_truth(SHARD, LAYOUT, "root1", b"one")) == ["root1", "root2"]
            assert sorted(await bus.publish_truth(SHARD, LAYOUT, "root2", b"two")) == ["root1", "root2"]
            assert await bus.fetch_truth(SHARD, LAYOUT) is None
            for each in (asked, claim()):
                outcome = await bus.claim(each)
                assert isinstance(outcome, Conflicted)
                assert sorted(outcome.roots) == ["root1", "root2"]
            assert isinstance(await bus.claim(claim(layout="other")), Elected)

    # ---------------------------------------------------------------------------------- letters

    async def test_letters_arrive_in_order_once_per_nonce_and_only_at_their_inbox(self) -> None:
        async with self.buses(2) as (bus, reader):
            for nonce, body in (("n1", b"one"), ("n2", b"two"), ("n1", b"again")):
                await bus.send(SHARD, "in", body, nonce)
            await bus.send(SHARD, "elsewhere", b"other", "n1")
            heard = await reader.listen(SHARD, "in", Cursor(), 5)
            assert [letter.body for letter in heard.letters] == [b"one", b"two"]
            assert [letter.fence for letter in heard.letters] == [0, 0]
            again = await reader.listen(SHARD, "in", heard.cursor, 0)
            assert again.letters == ()

    async def test_a_waiting_listener_is_woken(self) -> None:
        async with self.buses(2) as (bus, reader):
            cursor = await self._caught_up(reader)
            heard: list[Heard] = []

            async def wait() -> None:
                heard.append(await reader.listen(SHARD, "in", cursor, 5))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                await bus.send(SHARD, "in", b"news", "n1")
            assert [letter.body for letter in heard[0].letters] == [b"news"]
            assert not heard[0].renewed

    async def test_silence_ends_in_time_with_the_cursor_kept(self) -> None:
        async with self.buses() as (bus,):
            await bus.send(SHARD, "in", b"one", "n1")
            cursor = (await bus.listen(SHARD, "in", Cursor(), 5)).cursor
            with anyio.fail_after(5):
                assert await bus.listen(SHARD, "in", cursor, 0.05) == Heard(cursor)
                assert await bus.listen(SHARD, "in", cursor, 0) == Heard(cursor)

    async def test_a_cancelled_listener_loses_no_letter(self) -> None:
        async with self.buses(2) as (bus, reader):
            cursor = await self._caught_up(reader)
            with anyio.move_on_after(0.02):
                await reader.listen(SHARD, "in", cursor, 5)
            await bus.send(SHARD, "in", b"one", "n1")
            heard = await reader.listen(SHARD, "in", cursor, 5)
            assert [letter.body for letter in heard.letters] == [b"one"]

    async def test_one_listener_at_a_time(self) -> None:
        async with self.buses() as (bus,), anyio.create_task_group() as tasks:
            tasks.start_soon(bus.listen, SHARD, "in", Cursor(), 5)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(BusError, match="two listeners"):
                await bus.listen(SHARD, "in", Cursor(), 5)
            tasks.cancel_scope.cancel()

    async def test_progress_is_heard_and_a_mere_renewal_is_not(self) -> None:
        async with self.buses(2) as (bus, reader):
            await bus.advertise(SHARD, advert("source", have=1), 30)
            cursor = await self._caught_up(reader)
            await bus.advertise(SHARD, advert("source", have=1), 30)
            assert not (await reader.listen(SHARD, "in", cursor, 0)).fleet_changed
            await bus.advertise(SHARD, advert("source", have=2), 30)
            assert (await reader.listen(SHARD, "in", cursor, 5)).fleet_changed

    async def test_a_cursor_of_another_life_is_renewed(self) -> None:
        async with self.buses() as (bus,):
            await bus.send(SHARD, "in", b"one", "n1")
            cursor = (await bus.listen(SHARD, "in", Cursor(), 5)).cursor
            stale = Cursor(inbox="9999999999999-0", fleet="9999999999999-0", epoch="another life")
            assert await bus.listen(SHARD, "in", stale, 5) == Heard(Cursor(epoch=cursor.epoch), renewed=True)

    async def test_oversized_and_unnameable_things_are_refused(self) -> None:
        async with self.buses() as (bus,):
            large = bytes(65 * 1024)
            with pytest.raises(BusError, match="over the limit"):
                await bus.send(SHARD, "in", large, "n1")
            with pytest.raises(BusError, match="over the limit"):
                await bus.claim(claim(hello=large))
            with pytest.raises(BusError, match="over the limit"):
                await bus.record(SHARD, [large])
            with pytest.raises(BusError, match="cannot name"):
                await bus.send(SHARD, "in}{", b"", "n1")
            with pytest.raises(BusError, match="cannot name"):
                await bus.claim(claim(transfer="a/b"))

    # ---------------------------------------------------------------------------------- the rest

    async def test_the_journal_takes_entries(self) -> None:
        async with self.buses() as (bus,):
            await bus.record(SHARD, [b"\x00entry", b"another"])

    async def test_a_closed_bus_says_so(self) -> None:
        async with self.buses() as (bus,):
            await bus.aclose()
            await bus.aclose()
            with pytest.raises(BusError, match="closed"):
                await bus.adverts(SHARD)

    async def _caught_up(self, bus: Bus) -> Cursor:
        """A cursor after everything that has happened so far."""
        cursor = Cursor()
        while True:
            heard = await bus.listen(SHARD, "in", cursor, 0)
            if not (heard.letters or heard.fleet_changed):
                return heard.cursor
            cursor = heard.cursor


def _granted(outcome: ClaimOutcome) -> Granted:
    assert isinstance(outcome, Granted), outcome
    return outcome
