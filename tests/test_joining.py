"""A joiner and its sources over fakes in virtual time: every way a peer can fail, and what it costs.

Each test asserts the end, the virtual seconds spent, the bytes kept and the reason in the report.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from coldstart.errors import SkeletonError, TransportError
from coldstart.layout import Span
from coldstart.phases.states import Abandoning, Serving, Transferring
from coldstart.plan import GRACE, Limits
from coldstart.ports import Landed, Memory, Transport
from coldstart.report import Report
from coldstart.source import Mode
from coldstart.testing.harness import (
    CHUNK,
    FLOOR,
    LAYOUT,
    PEER_SECONDS,
    STORAGE_SECONDS,
    FakeStorage,
    Fleet,
    Member,
    Wrap,
    fleet,
)
from coldstart.testing.memories import layout_of
from coldstart.testing.transports import (
    Breaking,
    Corrupting,
    Deaf,
    Delayed,
    Lying,
    Repeating,
    Short,
    Stalling,
    Unoffering,
    WritingLate,
)
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime

LIMITS = Limits()
BUDGET = STORAGE_SECONDS + LIMITS.patience


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


async def lender(workers: Fleet, name: str = "a", slots: int = 2, transport: Wrap = lambda inner: inner) -> Member:
    """A worker that serves and is advertised."""
    member = workers.start(name, slots=slots, transport=transport)
    await member.lends()
    return member


def detour(report: Report, *parts: str) -> bool:
    """Whether one detour has all these parts."""
    return any(all(part in reason for part in parts) for reason in report.detours)


# -------------------------------------------------------------------------------------- the paths


async def test_the_first_worker_reads_storage_and_lends() -> None:
    async with fleet() as workers:
        a = workers.start("a")
        report = await a.lends()
        assert (report.path, report.bytes_storage, report.bytes_peer) == ("storage", LAYOUT.payload, 0)
        assert report.seconds == pytest.approx(STORAGE_SECONDS, abs=0.1)
        assert report.against == "own storage read"
        assert report.detours == ()
        assert a.source.state.mode is Mode.OPEN


async def test_the_second_worker_gets_everything_from_the_first() -> None:
    async with fleet() as workers:
        a = await lender(workers)
        b = workers.start("b")
        report = await b.ready()
        assert (report.path, report.sources, report.transport) == ("peer", ("a",), "loopback")
        assert (report.bytes_peer, report.bytes_storage) == (LAYOUT.payload, 0)
        assert report.seconds == pytest.approx(PEER_SECONDS, abs=0.1)
        assert report.against == "published truth"
        assert report.root == a.report.root != ""
        assert b.storage.reads == []
        assert b.content == a.content


async def test_what_was_received_is_lent_on() -> None:
    async with fleet() as workers:
        a = await lender(workers)
        await lender(workers, "b")
        await a.drain()
        report = await workers.start("c").ready()
        assert report.sources == ("b",)


async def test_a_failed_self_check_is_never_served() -> None:
    async with fleet() as workers:
        b = workers.start("b", self_check=lambda: ["tie of lm_head is broken"])
        with pytest.raises(SkeletonError, match="tie of lm_head"):
            await b.ready()
        await anyio.sleep(0.1)
        assert b.source.state.mode is Mode.SILENT, "nor lent any more"


# ----------------------------------------------------------------------- a source that is no use


async def test_another_layout_is_passed_over_and_the_report_says_why_in_words() -> None:
    other = layout_of(150_000, 3, 257, 200_000, 65_536, 2, chunk_bytes=CHUNK)
    async with fleet() as workers:
        await workers.start("a", layout=other, storage=FakeStorage(workers.weights(other))).lends()
        report = await workers.start("b").ready()
        assert report.path == "storage"
        assert report.seconds == pytest.approx(STORAGE_SECONDS, abs=0.1)
        assert len(report.skipped) == 1
        assert report.skipped[0].startswith("a: layout differs")
        assert "t5: here uint8 1, there uint8 2" in report.skipped[0]


async def test_a_source_that_never_answers_costs_its_time_and_is_not_asked_again() -> None:
    async with fleet() as workers:
        a = await lender(workers)
        await a.kill()
        report = await workers.start("b").ready()
        assert report.path == "storage"
        assert detour(report, "a", "no answer")
        assert report.seconds <= BUDGET
        assert report.seconds == pytest.approx(LIMITS.answer + STORAGE_SECONDS, abs=0.1)


async def test_three_dead_sources_cost_no_more_than_patience() -> None:
    async with fleet() as workers:
        for name in ("a", "b", "c", "d"):
            await lender(workers, name)
        for member in list(workers.members):
            await member.kill()
        report = await workers.start("e").ready()
        assert report.path == "storage"
        assert report.seconds <= BUDGET + 0.1


async def test_a_slow_offer_is_waited_for_within_the_answer_limit() -> None:
    async with fleet() as workers:
        await lender(workers, transport=lambda inner: Delayed(inner, offer=LIMITS.answer - 0.5))
        report = await workers.start("b").ready()
        assert report.path == "peer"


async def test_a_source_that_cannot_offer_refuses_with_the_reason() -> None:
    async with fleet() as workers:
        a = await lender(workers, transport=Unoffering)
        report = await workers.start("b").ready()
        assert report.path == "storage"
        assert detour(report, "a", "refused", "no room")
        assert report.seconds == pytest.approx(STORAGE_SECONDS, abs=0.1)
        assert a.source.state.grants == ()


# ---------------------------------------------------------------- a transfer that breaks half-way


@pytest.mark.parametrize(
    ("fault", "reason", "lost"),
    [
        (lambda inner: Breaking(inner, 3 * CHUNK + 1), "connection is gone", 0.0),
        (lambda inner: Breaking(inner, 3 * CHUNK + 1, KeyError("x")), "KeyError", 0.0),
        (lambda inner: Short(inner, 3 * CHUNK + 1), "ended early", 0.0),
        (lambda inner: Stalling(inner, 3 * CHUNK + 1), "stalled", LIMITS.stall),
    ],
    ids=["closed", "broken plugin", "short", "stalled"],
)
async def test_verified_chunks_are_kept_and_storage_reads_the_rest(fault: Wrap, reason: str, lost: float) -> None:
    async with fleet() as workers:
        await lender(workers)
        b = workers.start("b", transport=fault)
        report = await b.ready()
        assert report.path == "mixed"
        assert report.sources == ("a",)
        assert detour(report, "a", reason)
        assert report.bytes_peer + report.bytes_storage == LAYOUT.payload
        assert report.bytes_peer == pytest.approx(3 * CHUNK, abs=1024)
        assert b.storage.read_bytes == LAYOUT.nbytes - 3 * CHUNK
        left = b.storage.read_bytes / LAYOUT.nbytes
        assert report.seconds == pytest.approx(lost + PEER_SECONDS * (1 - left) + STORAGE_SECONDS * left, abs=0.1)


async def test_the_next_source_gives_only_what_is_missing() -> None:
    async with fleet() as workers:
        await lender(workers, "a", slots=8)  # the better one
        await lender(workers, "b")
        c = workers.start("c", transport=lambda inner: BreakingOnce(inner, 3 * CHUNK))
        report = await c.ready()
        assert report.path == "peer"
        assert report.sources == ("a", "b")
        assert report.bytes_peer == LAYOUT.payload
        assert c.storage.reads == []
        assert [attempt.source for attempt in report.attempts] == ["a", "b"]
        assert report.seconds == pytest.approx(PEER_SECONDS, abs=0.1)


class BreakingOnce(Breaking):
    """Only the first pull breaks."""

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        first, self._nbytes = self._nbytes, 1 << 60
        if first == self._nbytes:
            await self.inner.pull(ticket, spans, into, landed)
        else:
            await Breaking(self.inner, first).pull(ticket, spans, into, landed)


async def test_a_source_that_dies_under_a_transfer_is_left_for_the_next() -> None:
    async with fleet() as workers:
        a = await lender(workers, slots=8)
        await lender(workers, "b")

        def die() -> None:
            if not a.scope.cancel_called:
                a.scope.cancel()
                for offer in workers.hub.offers.values():
                    offer.revoked = True

        report = await workers.start("c", on_enter={Transferring: die}).ready()
        assert report.sources == ("b",)
        assert detour(report, "a", "offer is over")
        assert report.path == "peer"


async def test_wrong_bytes_end_the_transfer_and_only_the_right_ones_are_kept() -> None:
    async with fleet() as workers:
        await lender(workers)
        b = workers.start("b", transport=lambda inner: Corrupting(inner, 2))
        report = await b.ready()
        assert report.path == "mixed"
        assert detour(report, "a", "chunk 2 has wrong bytes")
        assert report.seconds <= BUDGET


async def test_success_without_a_write_is_found_by_the_digest() -> None:
    async with fleet() as workers:
        await lender(workers)
        report = await workers.start("b", transport=Lying).ready()
        assert (report.path, report.bytes_peer) == ("storage", 0)
        assert detour(report, "wrong bytes")
        assert report.seconds == pytest.approx(STORAGE_SECONDS, abs=0.1)


async def test_landings_reported_many_times_and_after_the_end_change_nothing() -> None:
    async with fleet() as workers:
        await lender(workers)
        b = workers.start("b", transport=Repeating)
        report = await b.ready()
        assert (report.path, report.bytes_peer) == ("peer", LAYOUT.payload)
        await anyio.sleep(5.0)
        assert isinstance(b.joiner.state, Serving)


# -------------------------------------------------------------------------------- late writers


async def test_a_late_writer_loses_the_memory_it_writes_to() -> None:
    transports: list[WritingLate] = []

    def fault(inner: Transport) -> Transport:
        transports.append(WritingLate(inner, 3 * CHUNK))
        return transports[0]

    async with fleet() as workers:
        await lender(workers)
        b = workers.start("b", transport=fault)
        report = await b.ready()
        assert len(b.memory.quarantined) == 1
        assert transports[0].write_late() > 0
        assert b.content == b.storage.held.content()
        assert report.bytes_peer >= 2 * CHUNK, "verified chunks go along into the new memory"
        assert b.storage.read_bytes <= LAYOUT.nbytes - 2 * CHUNK
        assert detour(report, "a", "stalled", "quarantined")
        assert report.seconds <= BUDGET


async def test_a_pull_that_cannot_be_cancelled_is_left_behind() -> None:
    transports: list[Deaf] = []

    def fault(inner: Transport) -> Transport:
        transports.append(Deaf(inner, CHUNK))
        return transports[0]

    async with fleet() as workers:
        await lender(workers)
        b = workers.start("b", transport=fault)
        report = await b.ready()
        assert len(b.memory.quarantined) == 1
        assert detour(report, "a", "stalled", "quarantined")
        assert (report.path, report.bytes_peer) == ("mixed", CHUNK)
        assert report.seconds <= BUDGET + LIMITS.quiet
        transports[0].write_late()
        transports[0].woken.set()
        await anyio.sleep(1.0)
        assert isinstance(b.joiner.state, Serving)
        assert b.content == b.storage.held.content()


async def test_what_a_late_writer_spoiled_before_it_was_taken_along_is_fetched_again() -> None:
    def spoil(keep: Sequence[Span]) -> None:
        b.memory.quarantine(keep)
        with b.memory.writing(Span(keep[0].offset, 1)) as views:
            views[0][0] ^= 1

    async with fleet() as workers:
        await lender(workers)
        b = workers.start("b", transport=lambda inner: WritingLate(inner, 2 * CHUNK), replace_memory=spoil)
        report = await b.ready()
        assert (report.path, report.bytes_peer) == ("mixed", CHUNK), "one of the two was right"
        assert b.content == b.storage.held.content()


async def test_memory_that_cannot_be_replaced_ends_the_start_and_says_so() -> None:
    def no_room(keep: Sequence[Span]) -> None:
        raise TransportError("no room for a second arena", reason="memory")

    async with fleet() as workers:
        await lender(workers)
        b = workers.start("b", transport=lambda inner: WritingLate(inner, CHUNK), replace_memory=no_room)
        with pytest.raises(Exception, match="could not be replaced: no room"):
            await b.ready()
        assert b.report.seconds <= LIMITS.stall + LIMITS.quiet + PEER_SECONDS
        assert Abandoning in {type(entry.after) for entry in b.entries}


async def test_a_source_slower_than_storage_is_left_and_costs_no_more_than_patience() -> None:
    async with fleet() as workers:
        await lender(workers)
        b = workers.start("b", peer_seconds=100 * STORAGE_SECONDS)
        report = await b.ready()
        assert detour(report, "a", "too slow") or detour(report, "a", "stalled")
        assert report.seconds <= BUDGET + GRACE
        assert b.content == b.storage.held.content()


PATIENT = Limits(stall=4.0, floor=FLOOR)
"""The loopback moves a chunk at a time: between two chunks, a slow one is no stalled one."""


async def test_a_source_that_is_only_a_little_slow_gives_what_patience_has_room_for() -> None:
    async with fleet() as workers:
        await lender(workers)
        b = workers.start("b", peer_seconds=1.2 * STORAGE_SECONDS, limits=PATIENT)
        report = await b.ready()
        assert (report.path, report.detours) == ("peer", ()), "12 s instead of 10 s: patience has room for that"


async def test_a_slow_source_keeps_its_verified_chunks_useful() -> None:
    async with fleet() as workers:
        await lender(workers)
        b = workers.start("b", peer_seconds=2 * STORAGE_SECONDS, limits=PATIENT)
        report = await b.ready()
        assert detour(report, "a", "too slow")
        assert report.path == "mixed"
        assert report.seconds <= BUDGET + GRACE
