"""Cold starts as a reader of the journal sees them, from real machines in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import anyio
import pytest

from coldstart.chronicle import lines
from coldstart.chronicle.lines import AnyLine, Header, pack
from coldstart.chronicle.reading import Chronicle
from coldstart.chronicle.starts import ColdStart
from coldstart.errors import CheckpointError, ColdStartFailed
from coldstart.group import Group
from coldstart.journal import LENT_SECONDS
from coldstart.ports import Recorded
from coldstart.testing.harness import CHUNK, LAYOUT, SHARD, FakeStorage, Fleet, fleet
from coldstart.testing.transports import Corrupting, Stalling
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


async def told(workers: Fleet) -> dict[str, ColdStart]:
    """What the journal tells, when everything has been written."""
    await anyio.sleep(2 * LENT_SECONDS)
    chronicle = Chronicle()
    for shard in workers.store.ledger.journals():
        chronicle.take(workers.store.ledger.recorded(shard, "0-0", 10_000))
    assert not chronicle.unreadable
    return {start.worker: start for start in chronicle.starts}


def kinds(start: ColdStart) -> list[str]:
    return [mark.kind for mark in start.marks]


async def test_a_start_from_a_peer_is_told_as_its_report_tells_it() -> None:
    async with fleet() as workers:
        storage = await workers.start("a").lends()
        peer = await workers.start("b").ready()
        found = await told(workers)
    a, b = found["a"], found["b"]
    assert (a.path, a.outcome, a.sources) == ("storage", "serving", {"storage": LAYOUT.payload})
    assert (b.path, b.outcome, b.sources) == ("peer", "serving", {"a": LAYOUT.payload})
    assert (a.seconds, b.seconds) == (pytest.approx(storage.seconds), pytest.approx(peer.seconds))
    assert [stretch.phase for stretch in b.phases] == ["DISCOVER", "HANDSHAKE", "TRANSFER", "VERIFY", "SERVE"]
    for earlier, later in zip(b.phases, b.phases[1:], strict=False):
        assert earlier.end == later.begin
    (pull,) = b.transfers
    assert (pull.source, pull.transport, pull.nbytes, pull.outcome) == ("a", "loopback", LAYOUT.nbytes, "ok")
    assert pull.rate == pytest.approx(LAYOUT.nbytes, rel=0.3)  # in a second
    (read,) = a.transfers
    assert (read.source, read.nbytes, read.leading, read.outcome) == ("storage", LAYOUT.nbytes, True, "ok")
    (loan,) = a.loans
    assert (loan.joiner, loan.start, loan.outcome) == ("b", b.start, "ok")
    assert pull.begin - 0.1 < loan.begin < loan.end < pull.end + 0.1
    assert (a.lost, b.lost, a.unknown, b.unknown) == (0, 0, 0, 0)


async def test_a_stalled_source_is_told() -> None:
    async with fleet() as workers:
        await workers.start("a").lends()
        await workers.start("b", transport=lambda inner: Stalling(inner, CHUNK)).ready()
        found = await told(workers)
    b = found["b"]
    (stall,) = [mark for mark in b.marks if mark.kind == "stalled"]
    assert (stall.source, stall.reason) == ("a", "stalled")
    assert b.detours == ("a: stalled",)
    assert [(each.source, each.outcome) for each in b.transfers][:1] == [("a", "stalled")]


async def test_wrong_bytes_are_told_with_their_chunk() -> None:
    async with fleet() as workers:
        await workers.start("a").lends()
        await workers.start("b", transport=lambda inner: Corrupting(inner, 2)).ready()
        found = await told(workers)
    (wrong,) = [mark for mark in found["b"].marks if mark.kind == "corrupted"]
    assert (wrong.source, "has wrong bytes" in wrong.reason) == ("a", True)
    assert found["b"].path == "mixed"
    assert {each.source for each in found["b"].transfers} == {"a", "storage"}


async def test_a_busy_source_is_a_refusal_with_its_reason_told_once() -> None:
    async with fleet() as workers:
        await workers.start("a", slots=1).lends()
        workers.start("b", peer_seconds=4.0)
        await anyio.sleep(0.5)
        await workers.start("c").ready()
        found = await told(workers)
    refusals = [(each.source, each.how, each.reason) for each in found["c"].refusals]
    assert ("a", "passed over", "busy") in refusals
    assert len(set(refusals)) == len(refusals)


async def test_a_source_that_drains_revokes() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        await a.lends()
        b = workers.start("b", transport=lambda inner: Stalling(inner, CHUNK))
        while not b.memory.content().startswith(a.content[:CHUNK]):
            await b.changed.wait()
        a.node.drain(at_once=True)
        await b.ready()
        found = await told(workers)
    assert [(each.source, each.how, each.reason) for each in found["b"].refusals] == [("a", "revoked", "drained")]
    assert found["a"].outcome == "gone"


async def test_a_start_that_fails_says_why() -> None:
    async with fleet() as workers:
        broken = FakeStorage(workers.weights(), limit=0, error=CheckpointError("disk on fire"))
        with pytest.raises(ColdStartFailed):
            await workers.start("a", storage=broken).ready()
        found = await told(workers)
    a = found["a"]
    assert (a.outcome, a.reason, a.path) == ("failed", "disk on fire", "none")
    assert [(each.source, each.outcome) for each in a.transfers] == [("storage", "disk on fire")]
    assert a.seconds is not None


async def test_ranks_of_a_group_know_each_other_and_their_verdicts() -> None:
    async with fleet() as workers:
        members = [workers.start(f"r{index}", group=Group("run", 2, index)) for index in range(2)]
        for member in members:
            await member.ready()
        found = await told(workers)
    assert [(each.group, each.index, each.size) for each in found.values()] == [("run", 0, 2), ("run", 1, 2)]
    for each in found.values():
        assert {mark.reason for mark in each.marks if mark.kind == "verdict"} >= {"ready: yes"}


async def test_a_relay_is_told_as_it_runs() -> None:
    """Its source still reads storage: both transfers are under way at the same time."""
    async with fleet() as workers:
        workers.start("a")
        await anyio.sleep(3.0)
        b = workers.start("b")
        await anyio.sleep(4.5)
        chronicle = Chronicle()
        chronicle.take(workers.store.ledger.recorded(SHARD.key, "0-0", 1000))
        running = {start.worker: start for start in chronicle.starts}
        await b.ready()
        found = await told(workers)
    assert running["a"].outcome == running["b"].outcome == "running"
    (read,), (pull,) = running["a"].transfers, running["b"].transfers
    assert (read.source, read.end, pull.source, pull.end) == ("storage", None, "a", None)
    (done,) = found["b"].transfers
    assert done.outcome == "ok"
    assert done.begin == pytest.approx(pull.begin)


# ------------------------------------------------------------------------------ a journal that suffered


HEADER = Header(start="s1", worker="w", shard="a" * 32)
STORY: Sequence[AnyLine] = (
    lines.Entered(at=1.0, phase="DISCOVER", state="Discovering", attempt=1),
    lines.Entered(at=1.1, phase="HANDSHAKE", state="Handshaking", attempt=1, source="a"),
    lines.Entered(at=1.2, phase="TRANSFER", state="Transferring", attempt=1, source="a"),
    lines.Pulling(at=1.2, attempt=1, source="a", transport="tcp"),
    lines.Stalled(at=4.0, attempt=1, source="a", reason="stalled"),
    lines.Pulled(at=4.0, attempt=1, source="a", transport="tcp", nbytes=50, seconds=2.8, outcome="stalled"),
    lines.Detoured(at=4.0, reason="a: stalled"),
    lines.Entered(at=4.0, phase="FALLBACK", state="Loading", attempt=2, source="storage"),
    lines.Pulling(at=4.0, attempt=2, source="storage", transport="storage"),
    lines.Pulled(at=9.0, attempt=2, source="storage", transport="storage", nbytes=50, seconds=5.0, outcome="ok"),
    lines.Entered(at=9.0, phase="VERIFY", state="Checking", attempt=2),
    lines.Entered(at=9.5, phase="SERVE", state="Serving", attempt=2),
    lines.Ended(at=9.5, phase="SERVE", total=100, origins={"a": 50, "storage": 50}),
)


def sheets(numbers: Sequence[int], sent: float, arrived: float) -> list[Recorded]:
    bodies = pack(HEADER, [(number, STORY[number - 1]) for number in numbers], sent)
    return [Recorded(f"{arrived * 1000:.0f}-0", arrived, body) for body in bodies]


def one(entries: Sequence[Recorded]) -> ColdStart:
    chronicle = Chronicle()
    chronicle.take(entries)
    (start,) = chronicle.starts
    return start


WHOLE = range(1, len(STORY) + 1)


def test_entries_in_any_order_and_any_number_tell_the_same() -> None:
    entries = [entry for number in WHOLE for entry in sheets([number], 10.0, 5010.0)]
    expected = one(sheets(WHOLE, 10.0, 5010.0))
    for seed in range(20):
        chance = Random(seed)
        shuffled = [*entries, *chance.choices(entries, k=5)]
        chance.shuffle(shuffled)
        assert one(shuffled) == expected


def test_the_quickest_sheet_says_when_it_began_whatever_the_workers_clock_says() -> None:
    late, quick = sheets([1, 2], 2.0, 5004.0), sheets(WHOLE[2:], 10.0, 5010.01)
    start = one([*late, *quick])
    assert start.began == pytest.approx(5000.01)
    assert start.heard == 5010.01
    assert start.phases[0].begin == pytest.approx(5001.01)


@pytest.mark.parametrize("lost", WHOLE)
def test_no_lost_line_hides_the_rest(lost: int) -> None:
    start = one(sheets([number for number in WHOLE if number != lost], 10.0, 5010.0))
    assert start.lost == (0 if lost == WHOLE[-1] else 1)  # nobody knows of a last one
    assert start.outcome == ("running" if lost == WHOLE[-1] else "serving")
    assert start.seconds == 9.5
    assert [each.source for each in start.transfers] == ["a", "storage"]
    for each in start.transfers:
        assert each.end is not None
        assert 5001 <= each.begin < each.end <= 5009.5
    for earlier, later in zip(start.phases, start.phases[1:], strict=False):
        assert earlier.end == later.begin
    assert start.sources == {"a": 50, "storage": 50}


def test_what_is_no_sheet_is_counted_and_left_out() -> None:
    chronicle = Chronicle()
    chronicle.take([Recorded("1-0", 0.001, b"\xff"), Recorded("2-0", 0.002, b"{}"), *sheets(WHOLE, 10.0, 5010.0)])
    assert chronicle.unreadable == 2
    assert len(chronicle.starts) == 1
