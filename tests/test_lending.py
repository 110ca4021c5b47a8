"""The source's hands over fakes in virtual time: who may read, what is advertised, what is proved."""

from __future__ import annotations

import secrets
from collections import Counter

import anyio
import msgspec
import pytest

from coldstart import effects, events
from coldstart.bus.memory import MemoryBus, MemoryStore
from coldstart.errors import TransportError
from coldstart.events import Event
from coldstart.lending import REVOKE_SECONDS
from coldstart.messages import Accept, Hello, Offer, Progress, Refusal, decode, encode
from coldstart.phases.states import Transferring
from coldstart.plan import Chunks, Limits
from coldstart.ports import Advert, Cursor, Grant, Memory
from coldstart.source import Mode, Terms
from coldstart.testing.harness import LAYOUT, LINEAGE, SHARD, FakeStorage, Fleet, Member, TroubledBus, fleet
from coldstart.testing.transports import Delayed, LoopbackTransport, Wrapped
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime

TERMS = Terms(LINEAGE, 2, ("loopback",))


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


async def adverts(workers: Fleet) -> list[Advert]:
    return list(await MemoryBus(workers.store).adverts(SHARD.key))


async def say(workers: Fleet, member: Member, message: Hello | Accept) -> None:
    bus = MemoryBus(workers.store)
    await bus.send(SHARD.key, f"{member.name}.0", encode(message), secrets.token_hex(8))
    await anyio.sleep(0.1)


async def answers(workers: Fleet, inbox: str) -> list[object]:
    heard = await MemoryBus(workers.store).listen(SHARD.key, inbox, Cursor(), 0)
    return [decode(letter.body) for letter in heard.letters]


def taken(member: Member, kind: type[Event]) -> int:
    return sum(isinstance(entry.event, kind) for entry in member.lent)


HELLO = Hello(transfer="t1", joiner="stranger.1", number=41, layout=LINEAGE, transports=("loopback",))


# ------------------------------------------------------------------------------------------ adverts


async def test_the_advert_says_what_is_held_and_how_to_get_it() -> None:
    async with fleet() as workers:
        a = workers.start("a", slots=3)
        assert await adverts(workers) == []
        await a.lends()
        (found,) = await adverts(workers)
        assert (found.worker, found.inbox, found.incarnation, found.generation) == ("a", "a.0", "0", 1)
        assert (found.layout, found.slots, found.used) == (LINEAGE, 3, 0)
        assert (found.have, found.total) == (LAYOUT.chunks, LAYOUT.chunks)
        assert (found.transports, found.device) == (("loopback",), "cpu")


async def test_the_truth_is_published_before_the_advert() -> None:
    async with fleet() as workers:
        bus = TroubledBus(workers.store)
        await workers.start("a", bus=bus).lends()
        published = bus.calls.index("publish_truth")
        assert "advertise" in bus.calls[published:], "of everything"
        assert bus.calls.index("state") < bus.calls.index("advertise"), "of a part: its digests are known"


async def test_the_advert_lives_as_long_as_the_source_and_hardly_longer() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        await anyio.sleep(100 * TERMS.lease)
        assert len(await adverts(workers)) == 1
        await a.kill()
        await anyio.sleep(TERMS.lease)
        assert await adverts(workers) == []


async def test_a_slow_advert_never_outlives_the_withdrawal_after_it() -> None:
    async with fleet() as workers:
        bus = TroubledBus(workers.store)
        a = workers.start("a", bus=bus)
        await a.lends()
        bus.slow["advertise"] = 1.0
        a.source.post(events.StoreRenewed())
        await anyio.sleep(0.5)
        await a.drain()
        await anyio.sleep(5.0)
        assert await adverts(workers) == []


async def test_a_source_whose_truth_is_disputed_serves_and_is_not_advertised() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        await a.ready()
        await MemoryBus(workers.store).publish_truth(SHARD.key, LINEAGE, "f" * 64, b"other")
        a.source.post(events.StoreRenewed())
        await anyio.sleep(2 * TERMS.lease)
        assert await adverts(workers) == []
        assert a.source.state.mode is Mode.OPEN
        assert taken(a, events.AdvertFailed) > 0


async def test_nothing_is_lent_without_coordination() -> None:
    async with fleet() as workers:
        a = workers.start("a", no_bus="switched off")
        assert (await a.ready()).verified
        await anyio.sleep(30.0)
        assert await adverts(workers) == []
        await a.drain()


# ------------------------------------------------------------------------------------------ progress


class SlowPost(TroubledBus):
    """Letters of progress take half a second to reach the store; how many are on their way to one inbox is counted."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.under_way: Counter[str] = Counter()
        self.most = 0
        self.told: list[Progress] = []

    async def send(self, shard: str, inbox: str, body: bytes, nonce: str) -> None:
        letter = decode(body)
        if not isinstance(letter, Progress):
            await super().send(shard, inbox, body, nonce)
            return
        self.under_way[inbox] += 1
        self.most = max(self.most, self.under_way[inbox])
        await anyio.sleep(0.5)
        await super().send(shard, inbox, body, nonce)
        self.under_way[inbox] -= 1
        self.told.append(letter)


async def test_a_slow_store_makes_letters_of_progress_rarer_and_loses_no_news() -> None:
    async with fleet() as workers:
        bus = SlowPost(workers.store)
        a = workers.start("a", bus=bus, storage=FakeStorage(workers.weights(), 5.0))
        await anyio.sleep(1.0)
        b = workers.start("b")
        assert (await b.ready()).path == "peer"
        await a.lends()
        wanted = sum(isinstance(effect, effects.SendProgress) for entry in a.lent for effect in entry.effects)
        assert bus.most == 1
        assert 1 < len(bus.told) < wanted
        known = [LAYOUT.chunks if letter.have is None else len(Chunks.decoded(letter.have)) for letter in bus.told]
        assert known == sorted(known)


# ------------------------------------------------------------------------------- offers and proofs


async def test_a_hello_is_answered_with_its_number_plus_one() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        await say(workers, a, HELLO)
        (offer,) = await answers(workers, "stranger.1")
        assert isinstance(offer, Offer)
        assert (offer.transfer, offer.answer, offer.transport) == ("t1", 42, "loopback")
        assert offer.ticket in workers.hub.offers


@pytest.mark.parametrize(
    ("favours", "given"),
    [
        ({}, "loopback"),
        ({"127.0.0.1": ("other", "loopback")}, "other"),
        ({"127.0.0.1": ("other",)}, "other"),
        ({"127.0.0.1": ("unknown", "loopback")}, "loopback"),
        ({"10.0.0.7": ("other", "loopback")}, "loopback"),
    ],
)
async def test_a_joiner_may_want_another_order_from_this_host(favours: dict[str, tuple[str, ...]], given: str) -> None:
    async with fleet() as workers:
        a = workers.start("a", others={"other": LoopbackTransport(workers.hub, name="other")})
        await a.lends()
        await say(workers, a, msgspec.structs.replace(HELLO, transports=("loopback", "other"), favours=favours))
        (offer,) = await answers(workers, "stranger.1")
        assert isinstance(offer, Offer)
        assert offer.transport == given


async def test_a_refusal_too() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        await say(workers, a, Hello(transfer="t1", joiner="x.1", number=41, layout="bb", transports=("loopback",)))
        assert await answers(workers, "x.1") == [
            Refusal(transfer="t1", answer=42, reason="layout", source=a.inbox)
        ]


async def test_only_an_accept_that_proves_itself_is_a_sign_of_life() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        await say(workers, a, HELLO)
        (offer,) = await answers(workers, "stranger.1")
        assert isinstance(offer, Offer)
        for wrong in (offer.number, offer.number + 2, 0):
            await say(workers, a, Accept(transfer="t1", answer=wrong))
        await say(workers, a, Accept(transfer="t2", answer=offer.number + 1))
        assert taken(a, events.AcceptReceived) == 0
        await say(workers, a, Accept(transfer="t1", answer=offer.number + 1))
        assert taken(a, events.AcceptReceived) == 1


async def test_an_offer_that_nobody_accepts_is_taken_back() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        await say(workers, a, HELLO)
        assert len(workers.hub.offers) == 1
        await anyio.sleep(TERMS.accept)
        assert workers.hub.offers == {}
        assert a.source.state.grants == ()


async def test_an_offer_that_opens_after_its_joiner_has_gone_is_closed_again() -> None:
    async with fleet() as workers:
        a = workers.start("a", transport=lambda inner: Delayed(inner, offer=TERMS.accept + 1.0))
        await a.lends()
        await say(workers, a, HELLO)
        await anyio.sleep(TERMS.accept + 2.0)
        assert a.source.state.grants == ()
        assert await answers(workers, "stranger.1") == []
        assert workers.hub.offers == {}, "nobody else would ever revoke it"


class Broken(Wrapped):
    """Offers raise ``error``; revoking always does."""

    error: Exception | None = None

    async def offer(self, grant: Grant, memory: Memory) -> bytes:
        if self.error is not None:
            raise self.error
        return await super().offer(grant, memory)

    async def revoke(self, transfer: str) -> None:
        await super().revoke(transfer)
        raise ZeroDivisionError("in a plugin")


@pytest.mark.parametrize(
    "error", [TransportError("no room", reason="full"), KeyError("in a plugin"), ValueError("x" * 9999)]
)
async def test_whatever_a_transport_raises_becomes_a_refusal_and_frees_the_slot(error: Exception) -> None:
    async with fleet() as workers:
        a = workers.start("a", transport=Broken)
        await a.lends()
        Broken.error = error
        try:
            await say(workers, a, HELLO)
        finally:
            Broken.error = None
        (refusal,) = await answers(workers, "stranger.1")
        assert isinstance(refusal, Refusal)
        assert refusal.answer == 42
        assert a.source.state.grants == ()


async def test_a_revocation_that_raises_still_ends_the_grant() -> None:
    async with fleet() as workers:
        a = workers.start("a", transport=Broken)
        await a.lends()
        await say(workers, a, HELLO)
        await a.drain()
        assert a.source.state.mode is Mode.CLOSED


async def test_a_ticket_that_no_joiner_would_read_is_a_refusal() -> None:
    class Verbose(Wrapped):
        async def offer(self, grant: Grant, memory: Memory) -> bytes:
            return await super().offer(grant, memory) + b"x" * 16 * 1024

    async with fleet() as workers:
        a = workers.start("a", transport=Verbose)
        await a.lends()
        await say(workers, a, HELLO)
        (refusal,) = await answers(workers, "stranger.1")
        assert isinstance(refusal, Refusal)
        assert "ticket" in refusal.reason


async def test_what_is_no_effect_of_the_source_is_a_bug_that_hurts_nobody() -> None:
    async with fleet() as workers:
        a = workers.start("a", storage=FakeStorage(workers.weights(), 0.1))
        await a.lends()
        await a.node._lending.perform(effects.Resign())
        assert a.source.state.mode is Mode.OPEN


async def test_the_slot_of_a_joiner_that_was_killed_is_free_soon() -> None:
    """Not only when the slot's own time is over: the source sees that nobody reads any more."""
    async with fleet() as workers:
        a = workers.start("a", slots=1)
        await a.lends()
        b = workers.start("b", peer_seconds=60.0, limits=Limits(patience=60.0, stall=60.0, floor=0))
        await b.reached(Transferring)
        await anyio.sleep(3 * TERMS.lease)
        assert (await adverts(workers))[0].used == 1
        await b.kill()
        await anyio.sleep(2 * TERMS.lease)
        assert (await adverts(workers))[0].used == 0
        c = workers.start("c")
        assert (await c.ready()).sources == ("a",)


async def test_a_revoke_that_never_returns_does_not_hold_up_a_drain() -> None:
    class Unending(Wrapped):
        async def revoke(self, transfer: str) -> None:
            await anyio.sleep_forever()

    async with fleet() as workers:
        a = workers.start("a", transport=Unending)
        await a.lends()
        b = workers.start("b", peer_seconds=60.0, limits=Limits(patience=60.0, stall=60.0, floor=0))
        await b.reached(Transferring)
        with anyio.fail_after(TERMS.drain + REVOKE_SECONDS + 1.0):
            await a.drain()
