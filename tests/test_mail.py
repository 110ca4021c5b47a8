"""The postman: each letter to the right side, nonsense counted, no outage too long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from msgspec.structs import replace

from coldstart.bus.memory import MemoryBus, MemoryStore
from coldstart.mail import BACK_OFF, Mail
from coldstart.messages import (
    Accept,
    AnyMessage,
    Done,
    Drain,
    Hello,
    Knock,
    Offer,
    Present,
    Progress,
    Refusal,
    encode,
)
from coldstart.ports import Claim, Deferred, Granted
from coldstart.testing.bus_contract import SHARD, advert
from coldstart.testing.harness import TroubledBus
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime

HELLO = Hello(transfer="t", joiner="j", number=1, layout="aa", transports=("tcp",))
OFFER = Offer(transfer="t", answer=2, number=5, transport="tcp", ticket=b"x", generation=1)
PROGRESS = Progress(transfer="t", answer=2, have=b"\x01")
REFUSAL = Refusal(transfer="t", answer=2, reason="busy")
ACCEPT = Accept(transfer="t", answer=6)
DONE = Done(transfer="t", outcome="ok")
DRAIN = Drain(transfer="t", asker="o", number=1)
KNOCK = Knock(transfer="t", asker="a.1", number=1, held=0)
PRESENT = Present(transfer="t", answer=2, held=5)


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


class Office:
    """A store, a postman, and what he has brought."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.sender = MemoryBus(self.store)
        self.bus = TroubledBus(self.store)
        self.to_joiner: list[Offer | Progress | Refusal] = []
        self.granted: list[tuple[str, Granted]] = []
        self.to_source: list[tuple[Hello | Accept | Done, int]] = []
        self.to_host: list[Drain] = []
        self.to_namesakes: list[Knock | Present] = []
        self.renewals: list[float] = []
        self.mail = Mail(
            self.bus,
            SHARD,
            "inbox",
            to_joiner=self.to_joiner.append,
            to_source=lambda message, fence: self.to_source.append((message, fence)),
            to_host=self.to_host.append,
            to_namesakes=self.to_namesakes.append,
            granted=lambda transfer, granted: self.granted.append((transfer, granted)),
            store_renewed=lambda: self.renewals.append(anyio.current_time()),
        )

    async def send(self, body: AnyMessage | bytes, nonce: str) -> None:
        data = body if isinstance(body, bytes) else encode(body)
        await self.sender.send(SHARD, "inbox", data, nonce)


@asynccontextmanager
async def office() -> AsyncIterator[Office]:
    async with anyio.create_task_group() as tasks:
        here = Office()
        tasks.start_soon(here.mail.run)
        yield here
        tasks.cancel_scope.cancel()


async def test_letters_reach_the_side_that_they_are_for_in_order() -> None:
    async with office() as here:
        messages: tuple[AnyMessage, ...] = (HELLO, OFFER, PROGRESS, ACCEPT, DRAIN, REFUSAL, KNOCK, DONE, PRESENT)
        for number, message in enumerate(messages):
            await here.send(message, f"n{number}")
        await anyio.sleep(0.1)
        assert here.to_joiner == [OFFER, PROGRESS, REFUSAL]
        assert here.to_source == [(HELLO, 0), (ACCEPT, 0), (DONE, 0)]
        assert here.to_host == [DRAIN]
        assert here.to_namesakes == [KNOCK, PRESENT]
        assert here.mail.dropped == 0


async def test_nonsense_is_counted_and_stops_nothing() -> None:
    async with office() as here:
        newer = b"\x82\xa4type\xa3bid\xa8transfer\xa1t"
        bodies: tuple[AnyMessage | bytes, ...] = (b"", b"\xc1", newer, b"\x91" * 60_000, OFFER)
        for number, body in enumerate(bodies):
            await here.send(body, f"n{number}")
        await anyio.sleep(0.1)
        assert here.to_joiner == [OFFER]
        assert here.mail.dropped == 4


async def test_a_letter_sent_twice_with_one_nonce_comes_once() -> None:
    async with office() as here:
        await here.send(OFFER, "n")
        await here.send(OFFER, "n")
        await anyio.sleep(0.1)
        assert here.to_joiner == [OFFER]


async def test_letters_for_others_are_not_ours() -> None:
    async with office() as here:
        await here.sender.send(SHARD, "other", encode(OFFER), "n")
        await anyio.sleep(0.1)
        assert here.to_joiner == []


async def test_a_grant_for_a_claim_in_line_comes_from_the_store_itself() -> None:
    async with office() as here:
        claim = Claim(SHARD, "aa", "w1", "t", encode(HELLO), inbox="inbox", queue_seconds=5.0)
        await here.sender.advertise(SHARD, replace(advert("w0"), layout="aa", slots=1), 60.0)
        await here.sender.claim(replace(claim, worker="w2", transfer="other"))
        assert isinstance(await here.sender.claim(claim), Deferred)
        await here.sender.release(SHARD, "w0", "other")
        await anyio.sleep(0.1)
        [(transfer, granted)] = here.granted
        assert (transfer, granted.source.worker) == ("t", "w0")


async def test_changes_of_the_fleet_wake_nobody() -> None:
    """In a fleet of a thousand they would wake everybody a thousand times."""
    async with office() as here:
        await anyio.sleep(0.1)
        calls = here.bus.calls.count("listen")
        await here.sender.advertise(SHARD, advert("w1"), 60.0)
        await anyio.sleep(0.1)
        assert here.bus.calls.count("listen") == calls


async def test_after_an_outage_letters_come_again_within_the_longest_pause() -> None:
    async with office() as here:
        await here.send(HELLO, "n1")
        await anyio.sleep(1.0)
        here.store.stop()
        await anyio.sleep(600.0)
        here.store.start()
        await here.send(OFFER, "n2")
        await anyio.sleep(max(BACK_OFF) + 0.1)
        assert here.to_source == [(HELLO, 0)], "not read again"
        assert here.to_joiner == [OFFER]
        assert here.renewals == []


async def test_a_store_that_lost_its_memory_is_noticed_and_read_from_its_beginning() -> None:
    async with office() as here:
        for number in range(5):
            await here.send(DONE, f"n{number}")
        await anyio.sleep(1.0)
        here.store.stop()
        here.store.start(empty=True)
        await here.send(OFFER, "n0")
        await anyio.sleep(max(BACK_OFF) + 0.1)
        assert len(here.renewals) == 1
        assert here.to_joiner == [OFFER], "its id is lower than those read before"


async def test_an_outage_costs_few_calls() -> None:
    async with office() as here:
        here.store.stop()
        began = anyio.current_time()
        calls = 0
        check = here.store.check

        def counted(operation: str) -> None:
            nonlocal calls
            calls += 1
            check(operation)

        here.store.check = counted  # type: ignore[method-assign]
        await anyio.sleep(60.0)
        assert calls <= (anyio.current_time() - began) / max(BACK_OFF) + len(BACK_OFF)
