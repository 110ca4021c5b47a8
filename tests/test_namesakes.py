"""Two workers of one name: one of them goes on, the one that has held it; a dead one keeps nobody waiting."""

from __future__ import annotations

import anyio
import pytest

from coldstart.bus.memory import MemoryBus
from coldstart.identity import is_id
from coldstart.messages import Knock, encode
from coldstart.namesakes import ANSWER_SECONDS, TIE_SECONDS
from coldstart.phases.states import Gone, Serving
from coldstart.replica import _own_name
from coldstart.testing.harness import SHARD, STORAGE_SECONDS, Fleet, TroubledBus, fleet
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime

LEASE = 6.0


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


def lenders(workers: Fleet) -> list[str]:
    return [advert.inbox for advert in workers.store.ledger.adverts(SHARD.key)]


async def test_a_newcomer_is_refused_in_one_line_while_the_other_one_lives() -> None:
    async with fleet() as workers:
        old = workers.start("w")
        await old.lends()
        await anyio.sleep(TIE_SECONDS)
        new = workers.start("w", peer_seconds=60)
        with anyio.fail_after(30):
            await new.ended.wait()
        assert "'w' lives already, on '127.0.0.1'" in new.refused
        await anyio.sleep(LEASE)
        assert isinstance(old.joiner.state, Serving)
        assert lenders(workers) == [old.inbox]


async def test_of_two_that_start_together_one_is_left() -> None:
    async with fleet() as workers:
        both = workers.start("w"), workers.start("w")
        await anyio.sleep(30)
        left = [each for each in both if isinstance(each.joiner.state, Serving) and not each.ended.is_set()]
        assert len(left) == 1
        assert lenders(workers) == [left[0].inbox]


async def test_a_process_that_is_started_anew_does_not_wait_for_its_old_lease() -> None:
    async with fleet() as workers:
        old = workers.start("w")
        await old.lends()
        await old.kill()
        began = anyio.current_time()
        new = workers.start("w")
        await new.lends()
        assert anyio.current_time() - began < STORAGE_SECONDS + ANSWER_SECONDS
        await anyio.sleep(30)
        assert isinstance(new.joiner.state, Serving)
        assert lenders(workers) == [new.inbox]


async def test_whoever_was_cut_off_for_longer_than_its_lease_finds_its_name_taken_and_lends_no_more() -> None:
    async with fleet() as workers:
        bus = TroubledBus(workers.store)
        old = workers.start("w", bus=bus)
        await old.lends()
        bus.down.update(("advert", "advertise", "release", "listen", "send"))
        await anyio.sleep(2 * LEASE)
        new = workers.start("w")
        await new.lends()
        await anyio.sleep(LEASE)
        bus.down.clear()
        with anyio.fail_after(120):
            await old.reached(Gone)
        await anyio.sleep(LEASE)
        assert isinstance(old.joiner.state, Gone)
        assert isinstance(new.joiner.state, Serving)
        assert lenders(workers) == [new.inbox]


async def test_a_letter_that_proves_nothing_takes_no_name() -> None:
    """Whoever asks for a name that it never held is answered, and that is all."""
    async with fleet() as workers:
        a = workers.start("w")
        await a.lends()
        await anyio.sleep(TIE_SECONDS)
        asking = encode(Knock(transfer="t", asker="w.0000", number=1, held=0))
        for number in range(40):
            await MemoryBus(workers.store).send(SHARD.key, a.inbox, asking, f"n{number}")
        await anyio.sleep(5)
        assert isinstance(a.joiner.state, Serving)


def test_names_that_nobody_chose_differ_where_host_and_process_are_the_same() -> None:
    """As in containers that share their host's name, where each is process 1."""
    assert len({_own_name() for _ in range(64)}) == 64
    assert is_id(_own_name())
