"""The store without waiting: what only it can be asked. Its rules are the contract's, through MemoryBus."""

import os
import subprocess
import sys

import pytest

from coldstart.bus import line
from coldstart.bus.ledger import Ledger
from coldstart.bus.limits import INBOX_SECONDS, LOOKS, MAX_SKIPS, SCAN
from coldstart.ports import Cursor, Deferred, Elected, Granted
from coldstart.testing.bus_contract import LAYOUT, SHARD, advert, claim


class Store:
    """A ledger whose time only moves when told to, and what its hooks have said."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.said: list[object] = []
        self.ledger = Ledger(lambda: self.now)
        self.ledger.on_letter = lambda shard, inbox: self.said.append((shard, inbox))
        self.ledger.on_change = lambda shard: self.said.append(shard)

    def news(self) -> list[object]:
        said, self.said = self.said, []
        return said


def test_the_hooks_say_whom_to_wake_and_nothing_else() -> None:
    store = Store()
    ledger, asked = store.ledger, claim()
    ledger.advertise(SHARD, advert("source"), 30)
    assert store.news() == [SHARD]
    ledger.advertise(SHARD, advert("source"), 30)
    assert store.news() == []
    ledger.claim(asked)
    assert store.news() == [(SHARD, "source.in")]
    ledger.claim(asked)
    assert store.news() == []
    ledger.release(SHARD, "source", asked.transfer)
    ledger.release(SHARD, "source", asked.transfer)
    assert store.news() == [SHARD]
    ledger.send(SHARD, "in", b"x", "n")
    ledger.send(SHARD, "in", b"x", "n")
    assert store.news() == [(SHARD, "in")]
    ledger.publish_truth("other", LAYOUT, "root", b"")
    assert store.news() == ["other"]
    ledger.wipe()
    assert store.news() == []


def test_a_wiped_ledger_remembers_nothing_and_says_so_to_old_cursors() -> None:
    ledger = Store().ledger
    before = ledger.advertise(SHARD, advert("source"), 30).epoch
    cursor = ledger.heard(SHARD, "in", Cursor()).cursor
    ledger.wipe()
    assert ledger.adverts(SHARD) == ledger.shards() == ()
    heard = ledger.heard(SHARD, "in", cursor)
    assert heard.renewed
    assert heard.cursor == Cursor(epoch=ledger.epoch)
    assert ledger.epoch != before


def test_an_inbox_that_nobody_reads_is_forgotten_and_one_that_is_read_stays() -> None:
    store = Store()
    for inbox in ("read", "unread"):
        store.ledger.send(SHARD, inbox, b"x", "n")
    for _ in range(2):
        store.now += INBOX_SECONDS - 1
        assert store.ledger.heard(SHARD, "read", Cursor()).letters
    assert not store.ledger.heard(SHARD, "unread", Cursor()).letters


class TestLargeFleet:
    """More adverts than a claim looks at."""

    @pytest.fixture
    def store(self) -> Store:
        store = Store()
        for number in range(3 * SCAN):
            store.ledger.advertise(SHARD, advert(f"w{number:03d}", slots=1), 30)
        return store

    def test_luck_spreads_claims_over_all_of_it(self, store: Store) -> None:
        chosen = {_source(store.ledger.claim(claim(f"j{luck}", luck=luck * 37))) for luck in range(3 * SCAN)}
        assert len(chosen) == 3 * SCAN

    def test_the_last_free_slot_is_found_from_anywhere(self, store: Store) -> None:
        while (free := 3 * SCAN - _used(store.ledger)) > 1:
            store.ledger.claim(claim(f"j{free}", luck=free, slot_seconds=60))
        last = next(each.worker for each in store.ledger.adverts(SHARD) if not each.used)
        for luck in range(3 * SCAN):
            asked = claim(luck=luck)
            assert _source(store.ledger.claim(asked)) == last
            store.ledger.release(SHARD, last, asked.transfer)

    def test_when_all_are_busy_it_defers_until_a_slot_lapses(self, store: Store) -> None:
        for number in range(3 * SCAN):
            store.ledger.claim(claim(f"j{number}", luck=number, slot_seconds=10 if number == 7 else 20))
        deferred = store.ledger.claim(claim(luck=5))
        assert isinstance(deferred, Deferred)
        assert len(deferred.skipped) == MAX_SKIPS
        assert deferred.skipped[0].worker == "w005"
        store.now += 10
        assert isinstance(store.ledger.claim(claim(luck=5)), Granted)
        assert isinstance(store.ledger.claim(claim(luck=5)), Deferred)

    def test_who_can_wait_is_content_with_few_looks_and_served_at_a_renewal(self, store: Store) -> None:
        for number in range(3 * SCAN):
            store.ledger.claim(claim(f"j{number}", luck=number, slot_seconds=60))
        store.ledger.advertise(SHARD, advert(f"w{2 * SCAN:03d}", slots=2), 30)
        waiting = claim(luck=0, queue_seconds=30.0, inbox="waiting")
        assert isinstance(store.ledger.claim(waiting), Deferred)
        store.ledger.advertise(SHARD, advert(f"w{2 * SCAN:03d}", slots=2), 30)
        assert _source(store.ledger.claim(waiting)) == f"w{2 * SCAN:03d}"

    def test_it_lapses_as_a_whole(self, store: Store) -> None:
        asked = claim(slot_seconds=60)
        source = _source(store.ledger.claim(asked))
        store.now += 30
        assert isinstance(store.ledger.claim(claim()), Elected)
        store.ledger.advertise(SHARD, advert(source, slots=1), 30)
        assert store.ledger.adverts(SHARD) == (advert(source, slots=1, used=1),)
        assert store.ledger.release(SHARD, source, asked.transfer) == advert(source, slots=1)


class TestLongLine:
    """More claims in line than one operation looks at."""

    @pytest.fixture
    def store(self) -> Store:
        store = Store()
        for number in range(LOOKS):
            waiting = claim(f"j{number}", exclude=("source",), queue_seconds=30.0, lead_seconds=0.0)
            assert isinstance(store.ledger.claim(waiting), Deferred)
        return store

    def test_whoever_stands_further_back_is_served_when_it_asks(self, store: Store) -> None:
        last = claim("last", queue_seconds=30.0, lead_seconds=0.0)
        assert isinstance(store.ledger.claim(last), Deferred)
        store.ledger.advertise(SHARD, advert("source"), 30)
        assert _used(store.ledger) == 0
        assert _source(store.ledger.claim(last)) == "source"

    def test_it_is_bounded_and_those_who_gave_up_make_room(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(line, "MAX_WAITING", LOOKS)
        late = claim("late", queue_seconds=60.0, lead_seconds=0.0)
        assert isinstance(store.ledger.claim(late), Deferred)
        assert store.ledger.shard(SHARD).lines.place(late.transfer, LAYOUT, store.now) is None
        store.now += 30.0
        assert isinstance(store.ledger.claim(late), Deferred)
        assert store.ledger.shard(SHARD).lines.place(late.transfer, LAYOUT, store.now) is not None

    def test_it_is_forgotten_when_everybody_has_left(self, store: Store) -> None:
        store.now += 30.0
        store.ledger.advertise(SHARD, advert("source"), 30)
        assert _used(store.ledger) == 0
        assert not store.ledger.shard(SHARD).lines


def _source(outcome: object) -> str:
    assert isinstance(outcome, Granted), outcome
    return outcome.source.worker


def _used(ledger: Ledger) -> int:
    return sum(each.used for each in ledger.adverts(SHARD))


_HISTORY = """
from coldstart.bus.ledger import Ledger
from coldstart.ports import Cursor
from coldstart.testing.bus_contract import SHARD, advert, claim
ledger = Ledger(lambda: 0.0)
for number in range(100):
    ledger.advertise(SHARD, advert(f"w{number * 37 % 100}", slots=1 + number % 3, transports=("tcp", "nccl")), 30)
for number in range(300):
    asked = claim(
        f"j{number}", luck=number * 7919, exclude=("w1", "w2"), transports=("nccl", "rdma", "tcp"),
        inbox=f"j{number}.in", queue_seconds=30.0, share_seconds=number % 2, crowd=number % 3,
    )
    print(ledger.claim(asked))
for number in range(100):
    ledger.advertise(SHARD, advert(f"w{number}", slots=4), 30)
print(ledger.adverts(SHARD), [ledger.heard(SHARD, f"j{number}.in", Cursor()) for number in range(300)])
for root in "cab":
    print(ledger.publish_truth(SHARD, "layout", root, b""))
"""


def test_the_answers_do_not_depend_on_the_seed_of_hashes() -> None:
    told = {
        subprocess.run(
            [sys.executable, "-c", _HISTORY],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(told) == 1


def test_what_a_worker_claims_of_its_own_slots_is_not_believed() -> None:
    ledger = Store().ledger
    ledger.advertise(SHARD, advert("source", used=2), 30)
    assert _source(ledger.claim(claim())) == "source"
    assert _used(ledger) == 1
