"""What a timeline shows of cold starts, from real machines in virtual time; and which one is meant by a name."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from coldstart.chronicle.reading import Chronicle
from coldstart.chronicle.starts import ColdStart
from coldstart.cli.timeline import horizon, lent, rows_of, summary
from coldstart.cli.trace import find
from coldstart.errors import CheckpointError, ColdStartFailed, ConfigError
from coldstart.journal import LENT_SECONDS
from coldstart.testing.harness import CHUNK, FakeStorage, Fleet, fleet
from coldstart.testing.transports import Stalling
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


async def told(workers: Fleet) -> tuple[ColdStart, ...]:
    await anyio.sleep(2 * LENT_SECONDS)
    chronicle = Chronicle()
    for shard in workers.store.ledger.journals():
        chronicle.take(workers.store.ledger.recorded(shard, "0-0", 10_000))
    return chronicle.starts


def shown(start: ColdStart, starts: tuple[ColdStart, ...]) -> list[tuple[str, str]]:
    return [(row.label, row.detail) for row in rows_of(start, starts)]


async def test_a_start_from_a_peer_shows_both_sides() -> None:
    async with fleet() as workers:
        await workers.start("a").lends()
        await workers.start("b").ready()
        starts = await told(workers)
    a, b = starts
    labels = [label for label, _ in shown(b, starts)]
    assert [label for label in labels if label.isupper()] == ["DISCOVER", "HANDSHAKE", "TRANSFER", "VERIFY", "SERVE"]
    assert dict(shown(b, starts))["a lends"] == "ok"
    assert "over loopback" in dict(shown(b, starts))["pull from a"]
    assert "for the whole fleet" in dict(shown(a, starts))["read storage"]
    assert summary(b).startswith("serves in 1.0")
    assert "path peer: " in summary(b)
    (loan,) = lent(a)
    assert loan.startswith("lent to b over loopback for 1.0")
    for start in starts:
        for row in rows_of(start, starts):
            assert 0 <= row.begin <= horizon(start)


async def test_a_stalled_source_is_said_once_and_where_it_happened() -> None:
    async with fleet() as workers:
        await workers.start("a").lends()
        await workers.start("b", transport=lambda inner: Stalling(inner, CHUNK)).ready()
        starts = await told(workers)
    rows = shown(starts[-1], starts)
    assert [detail for label, detail in rows if label in ("stall", "detour")] == ["a: stalled"]
    assert rows.index(("stall", "a: stalled")) == [label for label, _ in rows].index("FALLBACK") - 2  # and DISCOVER
    assert dict(rows)["pull from a"].endswith("stalled")


async def test_a_relay_is_seen_at_its_source() -> None:
    async with fleet() as workers:
        workers.start("a")
        await anyio.sleep(3.0)
        await workers.start("b").ready()
        starts = await told(workers)
    assert dict(shown(starts[-1], starts))["a lends"] == "ok, while it still received itself"


async def test_a_start_that_waits_for_a_loader_or_fails_says_so() -> None:
    async with fleet() as workers:
        broken = FakeStorage(workers.weights(), limit=0, error=CheckpointError("disk on fire"))
        failing = workers.start("a", storage=broken)
        with pytest.raises(ColdStartFailed):
            await failing.ready()
        workers.start("b", storage=FakeStorage(workers.weights(), partial=False))
        await anyio.sleep(1.0)
        workers.start("c")
        await anyio.sleep(5.0)
        early = await told(workers)
    a, _, c = early
    assert summary(a).startswith("failed after ")
    assert summary(a).endswith(": disk on fire")
    assert ("FAILED", "disk on fire") in shown(a, early)
    assert dict(shown(c, early))["DISCOVER"] == "waits for b, which reads storage"


async def test_names_ids_and_beginnings_of_ids() -> None:
    async with fleet() as workers:
        for name in "ab":
            await workers.start(name).ready()
        first, second = await told(workers)
    one = msgspec.structs.replace(first, start="c0ffee000001", trace="abcd" + "1" * 28)
    two = msgspec.structs.replace(second, start="c0ffee000002", trace="abcd" + "2" * 28)
    again = msgspec.structs.replace(one, start="deadbeef0003", trace="", group="run", index=1)
    other = msgspec.structs.replace(two, start="deadbeef0004", trace="", group="run", index=0)
    starts = (one, two, again, other)
    assert find(starts, "a") == [again]
    assert find(starts, "C0FFEE000001") == [one]
    assert find(starts, "abcd2") == [two]
    assert find(starts, "run") == [other, again]
    for asked in ("c0ffee", "abcd"):
        with pytest.raises(ConfigError, match="stands for 2 ids"):
            find(starts, asked)
    for asked in ("c0f", "nobody"):
        with pytest.raises(ConfigError, match="is called"):
            find(starts, asked)
