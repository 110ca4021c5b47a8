"""A worker that is asked over the bus to leave: it says what is in flight, then that nothing is lent any more."""

from __future__ import annotations

import anyio
import pytest

from coldstart.bus.memory import MemoryBus
from coldstart.departing import MOST_ASKERS
from coldstart.messages import Departure, Drain, decode, encode
from coldstart.phases.states import Gone, Serving
from coldstart.ports import Cursor
from coldstart.source import Mode
from coldstart.testing.harness import SHARD, Fleet, Member, TroubledBus, fleet
from coldstart.testing.transports import Delayed
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


async def ask(workers: Fleet, member: Member, asker: str = "op", nonce: str = "1") -> None:
    letter = encode(Drain(transfer="request", asker=asker, number=41))
    await MemoryBus(workers.store).send(SHARD.key, member.inbox, letter, nonce)


def told(workers: Fleet, asker: str = "op") -> list[tuple[int, bool]]:
    """What the asker has been told so far, by letters that prove that they are answers."""
    answers = [decode(letter.body) for letter in workers.store.ledger.heard(SHARD.key, asker, Cursor()).letters]
    assert all(isinstance(answer, Departure) and answer.answer == 42 for answer in answers)
    return [(answer.transfers, answer.over) for answer in answers if isinstance(answer, Departure)]


async def test_transfers_in_flight_end_and_then_the_asker_is_told() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        b = workers.start("b", transport=lambda inner: Delayed(inner, pull=1.0))
        await anyio.sleep(0.5)
        await ask(workers, a)
        await anyio.sleep(0.2)
        assert told(workers) == [(1, False)]
        assert not workers.store.ledger.adverts(SHARD.key), "nobody is sent there any more"
        assert (await b.ready()).path == "peer", "the transfer in flight was let end"
        await a.reached(Gone)
        assert told(workers) == [(1, False), (0, True)]
        assert a.source.state.mode is Mode.CLOSED


async def test_everybody_who_asks_is_answered_and_a_crowd_of_them_costs_nothing() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        for number in range(MOST_ASKERS + 5):
            await ask(workers, a, f"op{number}", f"n{number}")
            await ask(workers, a, f"op{number}", f"m{number}")
        await a.reached(Gone)
        await anyio.sleep(0.5)
        answers = [set(told(workers, f"op{number}")) for number in range(MOST_ASKERS + 5)]
        answered = [each for each in answers if each]
        assert len(answered) >= MOST_ASKERS
        assert all(each == {(0, False), (0, True)} for each in answered)


async def test_a_worker_that_still_receives_ends_its_start_and_says_so() -> None:
    async with fleet() as workers:
        await workers.start("a").lends()
        b = workers.start("b", transport=lambda inner: Delayed(inner, pull=60.0))
        await anyio.sleep(0.5)
        assert not isinstance(b.joiner.state, Serving)
        await ask(workers, b)
        await b.reached(Gone)
        await anyio.sleep(0.1)
        assert told(workers) == [(0, False), (0, True)]


async def test_a_store_that_is_down_keeps_nobody_from_leaving() -> None:
    async with fleet() as workers:
        bus = TroubledBus(workers.store)
        a = workers.start("a", bus=bus)
        await a.lends()
        bus.down.add("send")
        await ask(workers, a)
        with anyio.fail_after(10):
            await a.reached(Gone)
        assert told(workers) == []


async def test_who_has_left_already_is_told_at_once() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        await a.drain()
        await ask(workers, a)
        await anyio.sleep(0.5)
        assert told(workers) == [(0, False), (0, True)]
