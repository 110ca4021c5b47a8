"""Traces of real workers as a collector receives them: who is whose parent, what is linked, what went wrong."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence

import anyio
import pytest
from rig.fleet import PATIENCE, SLOW, Fleet, Worker
from rig.otlp import grpc_collector

from benchmarks.traces.collector import Collected, collector
from benchmarks.traces.spans import Span, children
from coldstart.bus.redis import RedisBus
from coldstart.chronicle.reading import Chronicle
from coldstart.chronicle.starts import ColdStart
from coldstart.cli import journals

pytestmark = pytest.mark.faults

COLLECTORS = {"http/protobuf": collector, "grpc": grpc_collector}


@pytest.fixture
def protocol() -> str:
    """Over what workers export; parametrize it to have both."""
    return "http/protobuf"


@pytest.fixture
def collected(workers: Fleet, protocol: str) -> Iterator[Collected]:
    """What the workers of the case have exported; all of it is here when they have ended."""
    with COLLECTORS[protocol]() as found:
        workers.environment |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": found.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "10",
        }
        yield found


def tree(spans: Sequence[Span], of: Span | None = None) -> list[object]:
    """Names of spans with those below them, in order."""
    return [(span.name, *tree(spans, span)) for span in children(spans, of)]


def named(spans: Sequence[Span], name: str) -> Sequence[Span]:
    return [span for span in spans if span.name == name]


def events(spans: Sequence[Span], name: str) -> list[dict[str, object]]:
    return [dict(event.attributes) for span in spans for event in span.events if event.name == name]


PEER_START = (
    "coldstart",
    ("coldstart.build",),
    (
        "coldstart.attempt",
        ("coldstart.discover",),
        ("coldstart.lend",),
        ("coldstart.handshake",),
        ("coldstart.transfer", ("coldstart.pull",)),
    ),
    ("coldstart.verify",),
    ("coldstart.serve",),
)


def in_any_order(part: object) -> object:
    """A tree whose branches are compared whatever order clocks have put them in."""
    if not isinstance(part, tuple):
        return part
    head, *rest = part
    return (head, *sorted((in_any_order(each) for each in rest), key=str))


@pytest.mark.parametrize("protocol", list(COLLECTORS))
async def test_joiner_and_source_are_one_trace(workers: Fleet, collected: Collected, protocol: str) -> None:
    source = await workers.serving("source")
    joiner = await workers.start("joiner")
    report = await joiner.serving()
    await joiner.leave()
    await source.leave()
    spans = collected.trace("joiner")
    (found,) = tree(spans)
    assert in_any_order(found) == in_any_order(PEER_START)
    root = collected.root("joiner")
    assert root.error is None
    assert root.attributes["coldstart.path"] == "peer"
    assert root.attributes["coldstart.sources"] == ("source",)
    assert root.attributes["coldstart.transfer.size"] == report.bytes_total
    assert root.attributes["coldstart.shard"] == report.shard
    (pull,) = named(spans, "coldstart.pull")
    assert (pull.kind, pull.attributes["coldstart.source"]) == ("client", "source")
    assert pull.attributes["coldstart.transport"] == "relayed"
    assert pull.attributes["coldstart.transfer.size"] >= report.bytes_peer
    assert pull.attributes["coldstart.transfer.rate"] > 0
    assert pull.attributes["coldstart.outcome"] == "ok"
    (lend,) = named(spans, "coldstart.lend")
    assert (lend.instance, lend.kind, lend.attributes["coldstart.outcome"]) == ("source", "server", "ok")
    (link,) = lend.links
    origin = collected.root("source")
    assert (link.trace, link.span, link.attributes) == (origin.trace, origin.id, {"coldstart.relation": "origin"})


async def test_a_chain_of_relays_can_be_walked_to_whoever_reads_storage(workers: Fleet, collected: Collected) -> None:
    first = await workers.start("first", disk="hold:2", slots=1)
    await workers.stuck("first")
    second = await workers.start("second", slots=1)
    await second.reached("TRANSFER")
    third = await workers.start("third")
    await third.reached("TRANSFER")
    workers.open_gate()
    for worker in (first, second, third):
        await worker.serving()
    for worker in (third, second, first):
        await worker.leave()
    at, way = "third", []
    while lends := named(collected.trace(at), "coldstart.lend"):
        (link,) = lends[0].links
        way.append((at, lends[0].instance, link.attributes["coldstart.relation"]))
        at = lends[0].instance
        assert link.span == collected.root(at).id
    assert way == [("third", "second", "relay"), ("second", "first", "relay")]
    (read,) = named(collected.trace(at), "coldstart.read")
    assert read.attributes["coldstart.leading"] is True


def kill(source: Worker) -> None:
    source.kill()


def stop(source: Worker) -> None:
    source.stop()


def drain(source: Worker) -> None:
    source.signal(signal.SIGTERM)


@pytest.mark.parametrize("strike", [kill, stop, drain])
async def test_a_source_that_is_lost_is_an_attempt_that_failed_and_storage_the_next(
    strike: object, workers: Fleet, collected: Collected
) -> None:
    source = await workers.serving("source", lend_gbps=SLOW, drain=0.1)
    joiner = await workers.start("joiner")
    await joiner.reached("TRANSFER", nbytes=1)
    assert callable(strike)
    strike(source)
    report = await joiner.serving()
    await joiner.leave()
    spans, root = collected.trace("joiner"), collected.root("joiner")
    attempts = named(spans, "coldstart.attempt")
    assert len(attempts) >= 2
    first, last = attempts[0], attempts[-1]
    assert first.error is not None
    assert first.error.startswith("source: ")
    assert (last.error, last.attributes["coldstart.outcome"]) == (None, "ok")
    (pull,), (read,) = named(spans, "coldstart.pull"), named(spans, "coldstart.read")
    assert pull.error
    assert pull.attributes["coldstart.transfer.size"] >= report.bytes_peer > 0
    assert (read.attributes["coldstart.transfer.size"] >= report.bytes_storage, read.error) == (True, None)
    (fallback,) = named(spans, "coldstart.fallback")
    assert read.parent == fallback.id
    assert fallback.parent == last.id
    assert (root.error, root.attributes["coldstart.path"]) == (None, "mixed")
    assert [each["coldstart.reason"] for each in events([root], "detour")] == list(report.detours)
    stalls, refusals = events([pull], "stalled"), events([pull], "refused")
    if strike is stop:
        assert stalls == [{"coldstart.source": "source", "coldstart.reason": "stalled"}]
    if strike is drain:
        assert refusals == [
            {"coldstart.source": "source", "coldstart.how": "revoked", "coldstart.reason": "drained"}
        ]
    assert bool(stalls) is (strike is stop)
    assert bool(refusals) is (strike is drain)


async def test_a_start_that_fails_says_so_to_the_collector_and_in_the_journal(
    workers: Fleet, collected: Collected
) -> None:
    """To its last line, although the process ends at once."""
    joiner = await workers.start("joiner", disk="eio:1")
    code, error = await joiner.failed()
    assert code
    spans, root = collected.trace("joiner"), collected.root("joiner")
    (read,) = named(spans, "coldstart.read")
    assert root.attributes["error.type"] == "storage"
    assert root.error
    assert root.error in error
    assert read.error == root.error
    (start,) = await told(workers)
    assert (start.outcome, start.reason, start.trace, start.lost) == ("failed", root.error, root.trace, 0)


async def test_a_worker_that_was_killed_stays_in_the_journal_as_far_as_it_came(
    workers: Fleet, collected: Collected
) -> None:
    await workers.serving("source", lend_gbps=SLOW)
    joiner = await workers.start("joiner")
    await joiner.reached("TRANSFER", nbytes=1)
    with anyio.fail_after(PATIENCE):
        while not [start for start in await told(workers) if start.worker == "joiner"]:
            await anyio.sleep(0.05)
    joiner.kill()
    await joiner.ended()
    (start,) = [start for start in await told(workers) if start.worker == "joiner"]
    assert (start.outcome, start.phase) == ("running", "TRANSFER")
    (pull,) = start.transfers
    assert (pull.source, pull.end) == ("source", None)


async def told(workers: Fleet) -> Sequence[ColdStart]:
    """What the journal in the store tells."""
    chronicle, bus = Chronicle(), await RedisBus.open(workers.store.url)
    try:
        for shard in await bus.journals():
            await journals.read(bus, shard, chronicle)
    finally:
        await bus.aclose()
    return chronicle.starts
