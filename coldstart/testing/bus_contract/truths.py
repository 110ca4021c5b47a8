"""Truths: published once, disputed, and stated while they are being made."""

from __future__ import annotations

import pytest

from coldstart.errors import BusError
from coldstart.ports import Conflicted, Elected, Stated
from coldstart.testing.bus_contract.base import LAYOUT, SHARD, BusSuite, advert, claim, granted


class Truths(BusSuite):
    """Published and stated truths."""

    async def test_truth_is_published_once_and_named_by_claims(self) -> None:
        async with self.buses(2) as (bus, waiting):
            assert await bus.fetch_truth(SHARD, LAYOUT) is None
            cursor = await self.caught_up(waiting)
            assert await bus.publish_truth(SHARD, LAYOUT, "root1", b"\x00truth") == ("root1",)
            assert (await waiting.listen(SHARD, "in", cursor, 5)).fleet_changed
            assert await bus.publish_truth(SHARD, LAYOUT, "root1", b"\x00truth") == ("root1",)
            assert await bus.fetch_truth(SHARD, LAYOUT) == b"\x00truth"
            assert await bus.fetch_truth(SHARD, "other") is None
            outcome = await bus.claim(claim())
            assert isinstance(outcome, Elected)
            assert outcome.root == "root1"

    async def test_a_record_is_replaced_on_demand_and_only_under_its_own_root(self) -> None:
        async with self.buses() as (bus,):
            assert await bus.publish_truth(SHARD, LAYOUT, "root1", b"first", again=True) == ("root1",)
            assert await bus.publish_truth(SHARD, LAYOUT, "root1", b"other") == ("root1",)
            assert await bus.fetch_truth(SHARD, LAYOUT) == b"first"
            assert await bus.publish_truth(SHARD, LAYOUT, "root1", b"other", again=True) == ("root1",)
            assert await bus.fetch_truth(SHARD, LAYOUT) == b"other"
            roots = await bus.publish_truth(SHARD, LAYOUT, "root2", b"third", again=True)
            assert sorted(roots) == ["root1", "root2"]
            assert await bus.fetch_truth(SHARD, LAYOUT) is None

    async def test_two_truths_are_a_conflict_and_neither_is_believed(self) -> None:
        async with self.buses() as (bus,):
            await bus.advertise(SHARD, advert("source"), 30)
            asked = claim()
            granted(await bus.claim(asked))
            await bus.publish_truth(SHARD, LAYOUT, "root2", b"two")
            assert sorted(await bus.publish_truth(SHARD, LAYOUT, "root1", b"one")) == ["root1", "root2"]
            assert sorted(await bus.publish_truth(SHARD, LAYOUT, "root2", b"two")) == ["root1", "root2"]
            assert await bus.fetch_truth(SHARD, LAYOUT) is None
            for each in (asked, claim()):
                outcome = await bus.claim(each)
                assert isinstance(outcome, Conflicted)
                assert sorted(outcome.roots) == ["root1", "root2"]
            assert isinstance(await bus.claim(claim(layout="other")), Elected)

    async def test_digests_are_stated_once_and_told_from_a_chunk_on(self) -> None:
        async with self.buses() as (bus,):
            assert await bus.stated(SHARD, LAYOUT) == Stated()
            assert await bus.state(SHARD, LAYOUT, {0: _digest(0), 5: _digest(5)})
            assert await bus.state(SHARD, LAYOUT, {2: _digest(2), 5: _digest(5)})
            assert await bus.state(SHARD, LAYOUT, {})
            assert await bus.stated(SHARD, LAYOUT) == Stated("", {chunk: _digest(chunk) for chunk in (0, 2, 5)})
            assert await bus.stated(SHARD, LAYOUT, 2) == Stated("", {chunk: _digest(chunk) for chunk in (2, 5)})
            assert await bus.stated(SHARD, LAYOUT, 6) == Stated()
            assert await bus.stated(SHARD, "other") == Stated()

    async def test_a_digest_of_zeros_is_a_digest(self) -> None:
        async with self.buses() as (bus,):
            assert await bus.state(SHARD, LAYOUT, {3: bytes(16)})
            assert await bus.stated(SHARD, LAYOUT) == Stated("", {3: bytes(16)})
            assert not await bus.state(SHARD, LAYOUT, {3: _digest(3)})

    async def test_a_digest_that_differs_from_what_stands_changes_nothing(self) -> None:
        async with self.buses() as (bus,):
            await bus.state(SHARD, LAYOUT, {1: _digest(1)})
            assert not await bus.state(SHARD, LAYOUT, {0: _digest(0), 1: _digest(9), 2: _digest(2)})
            assert await bus.stated(SHARD, LAYOUT) == Stated("", {1: _digest(1)})

    async def test_once_a_truth_is_published_nothing_is_left_to_state(self) -> None:
        async with self.buses() as (bus,):
            await bus.state(SHARD, LAYOUT, {0: _digest(0)})
            await bus.publish_truth(SHARD, LAYOUT, "r1", b"truth")
            assert await bus.stated(SHARD, LAYOUT) == Stated("r1")
            assert await bus.state(SHARD, LAYOUT, {0: _digest(9)})
            assert await bus.stated(SHARD, LAYOUT) == Stated("r1")
            await bus.publish_truth(SHARD, LAYOUT, "r2", b"other")
            assert await bus.stated(SHARD, LAYOUT) == Stated()

    async def test_the_last_chunk_can_be_stated_and_one_more_is_refused(self) -> None:
        async with self.buses() as (bus,):
            assert await bus.state(SHARD, LAYOUT, {65_535: _digest(1)})
            assert await bus.stated(SHARD, LAYOUT, 65_535) == Stated("", {65_535: _digest(1)})
            for digests in ({65_536: _digest(1)}, {-1: _digest(1)}, {0: b"short"}):
                with pytest.raises(BusError, match="cannot be stated"):
                    await bus.state(SHARD, LAYOUT, digests)


def _digest(number: int) -> bytes:
    return bytes([number]) * 16
