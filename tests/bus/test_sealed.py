"""The bus of a fleet with keys believes nobody who has none, whatever the store lets him do."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import anyio
import msgspec
import pytest

from coldstart.bus.memory import MemoryBus, MemoryStore
from coldstart.bus.notary import CLOCK_SECONDS, Notary, place_of
from coldstart.bus.sealed import SealedBus
from coldstart.bus.vouching import VOUCH_SECONDS
from coldstart.errors import BusError, IntegrityError
from coldstart.group import Tally, Verdict
from coldstart.ports import Advert, Bus, Conflicted, Cursor, Elected, Granted, Letter
from coldstart.refusals import Refusals
from coldstart.seals import WINDOW_SECONDS, Key, Keys
from coldstart.testing.bus_contract import LAYOUT, SHARD, advert, claim
from coldstart.testing.bus_contract.ballots import GROUP, YES, paper
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime

OLD, NEW, FOREIGN = (Key(name, name.encode() * 8) for name in ("old1", "new2", "evil"))
KEYS = Keys((OLD,))
DIGEST = b"d" * 16


def sealed(
    inner: Bus, keys: Callable[[], Keys] = lambda: KEYS, namespace: str = "cs", refusals: Refusals | None = None
) -> SealedBus:
    return SealedBus(inner, Notary(keys, namespace, "sender", refusals or Refusals(), inner.time))


class World:
    """A store, a member's bus with its counts, and what a stranger may do: everything that the store lets him."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.store = MemoryStore(now=lambda: 1e9 + anyio.current_time() + self.ahead)
        self.refusals = Refusals()
        self.keys = KEYS
        self.raw = MemoryBus(self.store)
        self.bus = sealed(MemoryBus(self.store), lambda: self.keys, refusals=self.refusals)

    def other(self, *keys: Key, namespace: str = "cs") -> SealedBus:
        """Somebody's bus on the same store."""
        return sealed(MemoryBus(self.store), lambda: Keys(keys or KEYS.signing), namespace)

    async def heard(self, inbox: str = "in", cursor: Cursor | None = None) -> tuple[bytes, ...]:
        """What the member believes of the letters in ``inbox``."""
        heard = await self.bus.listen(SHARD, inbox, cursor or Cursor(), 0, fleet=False)
        return tuple(letter.body for letter in heard.letters)

    async def wire(self, inbox: str = "in", shard: str = SHARD) -> bytes:
        """The last letter in ``inbox`` as it stands in the store."""
        return (await self.raw.listen(shard, inbox, Cursor(), 0, fleet=False)).letters[-1].body


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


# -------------------------------------------------------------------------------------------- letters


async def test_a_letter_of_a_member_is_heard_and_nothing_is_counted() -> None:
    world = World()
    await world.other().send(SHARD, "in", b"hello", "n1")
    assert b"hello" in await world.wire()  # sealed, not encrypted
    assert await world.heard() == (b"hello",)
    assert world.refusals.counts() == {}


async def test_letters_of_strangers_are_dropped_and_counted_by_reason() -> None:
    world = World()
    await world.raw.send(SHARD, "in", b"bare", "n1")
    await world.other(FOREIGN).send(SHARD, "in", b"foreign", "n2")
    await world.other(Key(OLD.ident, FOREIGN.secret)).send(SHARD, "in", b"impostor", "n3")
    await world.other(namespace="another").send(SHARD, "in", b"from next door", "n4")
    await world.raw.send(SHARD, "in", b"\x9a\xc4\x04CSS1" + b"\xff" * 99, "n5")
    assert await world.heard() == ()
    assert world.refusals.counts() == {
        "letter forged": 2,
        "letter malformed": 1,
        "letter unknown key": 1,
        "letter unsealed": 1,
    }
    assert world.bus.dropped == 5


async def test_every_byte_of_a_letter_is_sealed() -> None:
    world = World()
    await world.other().send(SHARD, "in", b"hello", "n1")
    right = await world.wire()
    for at in range(len(right)):
        wrong = bytearray(right)
        wrong[at] ^= 1
        await world.raw.send(SHARD, "flipped", bytes(wrong), f"f{at}")
    assert await world.heard("flipped") == ()
    assert sum(world.refusals.counts().values()) == world.bus.dropped
    assert await world.heard() == (b"hello",)


async def test_a_letter_that_is_put_elsewhere_or_again_is_dropped() -> None:
    world = World()
    await world.other().send(SHARD, "in", b"hello", "n1")
    letter = await world.wire()
    assert await world.heard() == (b"hello",)
    await world.raw.send(SHARD, "in", letter, "n2")
    await world.raw.send(SHARD, "another.in", letter, "n3")
    await world.raw.send("5bad" * 8, "in", letter, "n4")
    assert await world.heard() == ()
    assert await world.heard("another.in") == ()
    assert (await world.bus.listen("5bad" * 8, "in", Cursor(), 0)).letters == ()
    assert world.refusals.counts() == {"letter forged": 1, "letter misdirected": 1, "letter replayed": 2}


async def test_an_old_letter_is_not_believed_however_the_stranger_keeps_it() -> None:
    world = World()
    await world.other().send(SHARD, "in", b"hello", "n1")
    letter = await world.wire()
    await anyio.sleep(WINDOW_SECONDS + 1)
    fresh = World()
    fresh.store = world.store
    fresh.bus = sealed(MemoryBus(world.store), refusals=fresh.refusals)  # a reader that has seen nothing
    await world.raw.send(SHARD, "in", letter, "n2")
    assert await fresh.heard() == ()
    assert fresh.refusals.counts() == {"letter stale": 2}


async def test_a_hello_reaches_whoever_the_store_grants() -> None:
    world = World()
    await world.other().advertise(SHARD, advert("source", inbox="in"), 30)
    assert isinstance(await world.other().claim(claim()), Granted)
    assert await world.heard() == (b"hello",)


async def test_a_store_whose_clock_jumps_costs_no_letter_for_long() -> None:
    """Both sides go by the store's clock; they look at it again when a letter seems old, or after a while."""
    for jump in (3600.0, -3600.0):
        world = World()
        sender = world.other()
        await sender.send(SHARD, "in", b"before", "n1")
        assert await world.heard() == (b"before",)
        cursor = (await world.raw.listen(SHARD, "in", Cursor(), 0)).cursor
        world.ahead = jump
        await anyio.sleep(CLOCK_SECONDS)
        await sender.send(SHARD, "in", b"after", "n2")
        assert await world.heard(cursor=cursor) == (b"after",)


# -------------------------------------------------------------------------------------------- adverts


async def test_an_advert_is_told_as_its_worker_sealed_it() -> None:
    world = World()
    await world.other().advertise(SHARD, advert("source", host="10.0.0.1"), 30)
    assert await world.bus.adverts(SHARD) == (advert("source", host="10.0.0.1"),)
    (wire,) = await world.raw.adverts(SHARD)
    await world.raw.advertise(SHARD, msgspec.structs.replace(wire, host="10.6.6.6", slots=99, inbox="evil.in"), 30)
    assert await world.bus.adverts(SHARD) == (advert("source", host="10.0.0.1"),)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda wire: msgspec.structs.replace(wire, seal=""), "unsealed"),
        (lambda wire: msgspec.structs.replace(wire, seal="!"), "malformed"),
        (lambda wire: msgspec.structs.replace(wire, seal=wire.seal[:-8] + "AAAAAAA="), "malformed|forged"),
        (lambda wire: msgspec.structs.replace(wire, worker="imp"), "misdirected"),
        (lambda wire: msgspec.structs.replace(wire, layout="b" * 32), "misdirected"),
    ],
)
async def test_an_advert_that_nobody_sealed_says_why_it_is_not_proven(
    change: Callable[[Advert], Advert], reason: str
) -> None:
    world = World()
    await world.other().advertise(SHARD, advert("source"), 30)
    (wire,) = await world.raw.adverts(SHARD)
    await world.raw.withdraw(SHARD, "source", "1")
    forged = change(wire)
    await world.raw.advertise(SHARD, forged, 30)
    (told,) = await world.bus.adverts(SHARD)
    assert told.unproven.startswith("its advert is not proven")
    assert await world.bus.advert(SHARD, forged.worker) == told
    assert set(world.refusals.counts()) <= {f"advert {each}" for each in reason.split("|")}
    outcome = await world.bus.claim(claim(layout=forged.layout))
    assert isinstance(outcome, Granted)
    assert outcome.source.unproven == told.unproven
    assert await world.bus.release(SHARD, forged.worker, "t") is None


async def test_an_advert_kept_by_a_stranger_grows_old() -> None:
    world = World()
    await world.other().advertise(SHARD, advert("source"), 6)
    (wire,) = await world.raw.adverts(SHARD)
    await anyio.sleep(WINDOW_SECONDS + 7)
    await world.raw.advertise(SHARD, wire, 30)
    (told,) = await world.bus.adverts(SHARD)
    assert "old" in told.unproven


async def test_an_advert_that_says_nothing_new_is_no_news() -> None:
    """Or every renewal would wake whoever listens to the fleet."""
    world = World()
    source = world.other()
    await source.advertise(SHARD, advert("source"), 6)
    cursor = (await world.raw.listen(SHARD, "in", Cursor(), 0)).cursor
    await anyio.sleep(2)
    await source.advertise(SHARD, advert("source"), 6)
    assert not (await world.raw.listen(SHARD, "in", cursor, 0)).fleet_changed
    await source.advertise(SHARD, advert("source", have=7), 6)
    assert (await world.raw.listen(SHARD, "in", cursor, 0)).fleet_changed


async def test_a_grant_that_comes_later_is_looked_at_as_well() -> None:
    world = World()
    await world.raw.advertise(SHARD, advert("imp", slots=1), 30)
    first = claim()
    assert isinstance(await world.raw.claim(first), Granted)
    await world.bus.claim(claim(inbox="in", queue_seconds=30))
    await world.raw.release(SHARD, "imp", first.transfer)
    (letter,) = (await world.bus.listen(SHARD, "in", Cursor(), 0)).letters
    assert isinstance(letter, Letter)
    assert letter.granted is not None
    assert "not proven" in letter.granted.source.unproven


# --------------------------------------------------------------------------------- truths and digests


async def test_a_truth_that_no_member_published_is_not_believed() -> None:
    world = World()
    await world.raw.publish_truth(SHARD, LAYOUT, "root", b"forged")
    with pytest.raises(IntegrityError, match="not proven"):
        await world.bus.fetch_truth(SHARD, LAYOUT)
    await world.other(FOREIGN).publish_truth(SHARD, LAYOUT, "root", b"forged")
    with pytest.raises(IntegrityError, match="not proven"):
        await world.bus.fetch_truth(SHARD, LAYOUT)
    assert world.refusals.counts() == {"truth unproven": 2}


async def test_a_truth_that_is_put_in_the_place_of_another_is_not_believed() -> None:
    world = World()
    await world.other().publish_truth(SHARD, LAYOUT, "root", b"truth")
    await world.other().publish_truth(SHARD, "b" * 32, "other", b"of another layout")
    assert await world.bus.fetch_truth(SHARD, LAYOUT) == b"truth"
    world.store.shard(SHARD).truths[LAYOUT] = ("other", b"of another layout")
    with pytest.raises(IntegrityError, match="not proven"):
        await world.bus.fetch_truth(SHARD, LAYOUT)


async def test_a_truth_that_only_strangers_name_is_not_named_by_claims() -> None:
    world = World()
    await world.raw.publish_truth(SHARD, LAYOUT, "forged", b"forged")
    outcome = await world.bus.claim(claim())
    assert isinstance(outcome, Elected)
    assert outcome.root == ""
    assert (await world.bus.stated(SHARD, LAYOUT)).root == ""
    await world.other().advertise(SHARD, advert("source"), 30)
    granted = await world.bus.claim(claim())
    assert isinstance(granted, Granted)
    assert (granted.root, granted.source.unproven) == ("", "")


async def test_a_conflict_that_strangers_make_stops_nobody_and_is_named() -> None:
    """Whether theirs or ours was there first."""
    for strangers_first in (True, False):
        world = World()
        if strangers_first:
            await world.raw.publish_truth(SHARD, LAYOUT, "forged", b"forged")
            with pytest.raises(BusError, match="members have published 1"):
                await world.bus.publish_truth(SHARD, LAYOUT, "root", b"truth")
        else:
            await world.bus.publish_truth(SHARD, LAYOUT, "root", b"truth")
            await world.raw.publish_truth(SHARD, LAYOUT, "forged", b"forged")
        with pytest.raises(BusError, match="somebody without the fleet's keys"):
            await world.other().claim(claim())


async def test_a_conflict_between_members_is_one() -> None:
    world = World()
    await world.bus.publish_truth(SHARD, LAYOUT, "one", b"one")
    assert await world.other().publish_truth(SHARD, LAYOUT, "two", b"two") == ("one", "two")
    assert isinstance(await world.bus.claim(claim()), Conflicted)


async def test_who_knows_the_truth_replaces_a_record_that_nobody_believes() -> None:
    world = World()
    await world.raw.publish_truth(SHARD, LAYOUT, "root", b"same root, another probe")
    assert await world.bus.publish_truth(SHARD, LAYOUT, "root", b"truth") == ("root",)
    assert await world.other().fetch_truth(SHARD, LAYOUT) == b"truth"


async def test_digests_that_no_member_stated_are_left_out() -> None:
    world = World()
    await world.other().state(SHARD, LAYOUT, {0: DIGEST, 5: DIGEST})
    await world.raw.state(SHARD, LAYOUT, {1: DIGEST})
    await world.raw.state(SHARD, LAYOUT, {2: DIGEST})
    await world.raw.state(SHARD, place_of(OLD, "digest", LAYOUT), {2: b"p" * 16})
    assert (await world.bus.stated(SHARD, LAYOUT)).digests == {0: DIGEST, 5: DIGEST}
    assert world.refusals.counts() == {"digest forged": 1}


# --------------------------------------------------------------------------------------------- votes


async def test_a_yes_that_not_every_rank_has_said_is_no_verdict() -> None:
    world = World()
    zero, one = world.bus, world.other()
    forged = Verdict("path", True)
    await world.raw.vote(GROUP, paper(1, YES, heard=(forged,)))
    assert (await zero.vote(GROUP, paper(0, YES))).verdicts == ()
    assert world.refusals.counts() == {"vote unproven": 1}
    await one.vote(GROUP, paper(1, YES))
    assert await zero.vote(GROUP, paper(0, YES)) == Tally((forged,), 2)


async def test_a_verdict_stays_proven_when_the_store_has_lost_its_memory() -> None:
    world = World()
    zero, one = world.bus, world.other()
    await zero.vote(GROUP, paper(0, YES))
    told = (await one.vote(GROUP, paper(1, YES))).verdicts
    world.store.stop()
    world.store.start(empty=True)
    await anyio.sleep(2)
    await one.vote(GROUP, paper(1, heard=told))
    assert (await zero.vote(GROUP, paper(0, YES))).verdicts == told


# ------------------------------------------------------------------------------------ changing keys


async def test_keys_are_changed_while_workers_speak() -> None:
    """Added last, then first, then alone: at each step those who have the file already and those who have not."""
    steps = (Keys((OLD,)), Keys((OLD, NEW)), Keys((NEW, OLD)), Keys((NEW,)))
    for before, after in pairwise(steps):
        for writer, reader in ((before, after), (after, before)):
            world = World()
            world.keys = reader
            other = world.other(*writer.signing)
            await other.send(SHARD, "in", b"letter", "n1")
            await other.advertise(SHARD, advert("source"), 30)
            await other.publish_truth(SHARD, LAYOUT, "root", b"truth")
            await other.state(SHARD, "b" * 32, {3: DIGEST})
            await other.vote(GROUP, paper(1, YES))
            assert await world.heard() == (b"letter",)
            assert await world.bus.adverts(SHARD) == (advert("source"),)
            assert await world.bus.fetch_truth(SHARD, LAYOUT) == b"truth"
            assert (await world.bus.stated(SHARD, "b" * 32)).digests == {3: DIGEST}
            assert (await world.bus.vote(GROUP, paper(0, YES))).verdicts == (Verdict("path", True),)
            assert world.refusals.counts() == {}


async def test_a_source_vouches_for_the_truth_with_every_new_key() -> None:
    world = World()
    await world.bus.publish_truth(SHARD, LAYOUT, "root", b"truth")
    for keys in (Keys((OLD,)), Keys((OLD, NEW)), Keys((NEW, OLD))):
        world.keys = keys
        assert (await world.bus.advertise(SHARD, advert("source"), 6)).root == "root"
    assert await world.other(NEW).fetch_truth(SHARD, LAYOUT) == b"truth"


async def test_the_stores_word_for_a_name_is_no_reason_to_sign_it() -> None:
    """A stranger renames a proven record while keys are changed, and waits for a source to vouch for that."""
    world = World()
    await world.bus.publish_truth(SHARD, LAYOUT, "root", b"truth")
    world.store.shard(SHARD).truths[LAYOUT] = ("forged", b"truth")
    world.keys = Keys((NEW, OLD))
    assert (await world.bus.advertise(SHARD, advert("source"), 6)).root == ""
    assert isinstance(outcome := await world.other(NEW).claim(claim()), Granted)
    assert outcome.root == ""


async def test_a_source_is_told_when_nobody_can_prove_its_truth_any_more() -> None:
    """It publishes it again then, as after the store has lost it."""
    world = World()
    await world.bus.publish_truth(SHARD, LAYOUT, "root", b"truth")
    world.store.shard(SHARD).stated.clear()
    assert (await world.bus.advertise(SHARD, advert("source"), 6)).root == "root"
    await anyio.sleep(VOUCH_SECONDS)
    assert (await world.bus.advertise(SHARD, advert("source"), 6)).root == ""
    await world.bus.publish_truth(SHARD, LAYOUT, "root", b"truth")
    assert (await world.bus.advertise(SHARD, advert("source"), 6)).root == "root"
    assert await world.other().fetch_truth(SHARD, LAYOUT) == b"truth"
