"""Letters, listeners and cursors, and what a bus refuses."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from coldstart.errors import BusError
from coldstart.ports import Cursor, Heard, Standing
from coldstart.testing.bus_contract.base import AHEAD, LAYOUT, SHARD, BusSuite, advert, claim


class Letters(BusSuite):
    """Inboxes, the fleet's stream, the journal."""

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
            cursor = await self.caught_up(reader)
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
            cursor = await self.caught_up(reader)
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
            cursor = await self.caught_up(reader)
            await bus.advertise(SHARD, advert("source", have=1), 30)
            assert not (await reader.listen(SHARD, "in", cursor, 0)).fleet_changed
            await bus.advertise(SHARD, advert("source", have=2), 30)
            assert (await reader.listen(SHARD, "in", cursor, 5)).fleet_changed

    async def test_who_does_not_listen_to_the_fleet_hears_letters_only(self) -> None:
        async with self.buses(2) as (bus, reader):
            cursor = await self.caught_up(reader)
            await bus.advertise(SHARD, advert("source"), 30)
            heard = await reader.listen(SHARD, "in", cursor, 0, fleet=False)
            assert heard == Heard(heard.cursor)
            await bus.send(SHARD, "in", b"news", "n")
            heard = await reader.listen(SHARD, "in", heard.cursor, 5, fleet=False)
            assert [letter.body for letter in heard.letters] == [b"news"]
            assert not heard.fleet_changed
            assert (await reader.listen(SHARD, "in", heard.cursor, 5)).fleet_changed, "nothing was missed"

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
            cursor = await self.caught_up(listener)
            for stream in ("inbox", "fleet"):
                heard = await listener.listen(SHARD, "in", msgspec.structs.replace(cursor, **{stream: AHEAD}), 5)
                assert heard.renewed
                await bus.send(SHARD, "in", b"next", stream)
                heard = await listener.listen(SHARD, "in", heard.cursor, 5)
                assert [letter.body for letter in heard.letters] == [b"next"]
                cursor = heard.cursor

    async def test_the_journal_gives_its_entries_in_order_from_any_place_on(self) -> None:
        async with self.buses(2) as (bus, reader):
            assert await reader.recorded(SHARD) == ()
            await bus.record(SHARD, [b"\x00entry", b"another"])
            await bus.record("elsewhere", [b"other"])
            first, second = await reader.recorded(SHARD)
            assert (first.body, second.body) == (b"\x00entry", b"another")
            assert await reader.recorded(SHARD, most=1) == (first,)
            assert await reader.recorded(SHARD, first.id) == (second,)
            assert await reader.recorded(SHARD, second.id) == ()
            await bus.record(SHARD, [b"third"])
            (third,) = await reader.recorded(SHARD, second.id)
            assert third.body == b"third"
            assert first.at <= second.at <= third.at

    async def test_shards_with_a_journal_are_known_without_any_advert(self) -> None:
        async with self.buses() as (bus,):
            assert await bus.journals() == ()
            for shard in ("b", "a", "b"):
                await bus.record(shard, [b"entry"])
            assert await bus.journals() == ("a", "b")
            assert await bus.shards() == ()

    async def test_a_place_that_is_none_is_refused(self) -> None:
        async with self.buses() as (bus,):
            for place in ("", "$", "1", "1-0 +"):
                with pytest.raises(BusError, match="no place"):
                    await bus.recorded(SHARD, place)
            for most in (0, 1_000_000):
                with pytest.raises(BusError, match="cannot be asked for"):
                    await bus.recorded(SHARD, most=most)

    async def test_a_closed_bus_says_so(self) -> None:
        async with self.buses() as (bus,):
            await bus.aclose()
            await bus.aclose()
            with pytest.raises(BusError, match="closed"):
                await bus.adverts(SHARD)
