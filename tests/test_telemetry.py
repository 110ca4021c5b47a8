"""Spans of one cold start: phases and attempts of the joiner, and the source's, in one trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
import structlog
import torch
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import coldstart
from coldstart import config
from coldstart.errors import ColdStartFailed
from coldstart.telemetry import names

Write = Callable[..., Path]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """A provider that the host, here the test, has set; coldstart itself never sets one."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def tree(spans: tuple[ReadableSpan, ...]) -> dict[str, str]:
    """Each span's name and its parent's."""
    names = {span.context.span_id: span.name for span in spans if span.context}
    return {span.name: names.get(span.parent.span_id, "remote") if span.parent else "" for span in spans}


async def test_joiner_and_source_share_a_trace(
    spans: InMemorySpanExporter, tmp_path: Path, write_checkpoint: Write
) -> None:
    checkpoint = write_checkpoint(tmp_path / "model")
    settings = config.load({"directory": str(tmp_path / "v")}, environ={})
    async with coldstart.join(checkpoint, skeleton="tensors", worker="a", settings=settings):
        spans.clear()
        async with coldstart.join(checkpoint, skeleton="tensors", worker="b", settings=settings):
            pass
    finished = [span for span in spans.get_finished_spans() if not span.name.startswith("redis")]
    joined = {span.context.trace_id for span in finished if span.name == "coldstart" and span.context}
    ours = tuple(span for span in finished if span.context and span.context.trace_id in joined)
    assert tree(ours) == {
        "coldstart": "",
        "coldstart.build": "coldstart",
        "coldstart.attempt": "coldstart",
        "coldstart.discover": "coldstart.attempt",
        "coldstart.handshake": "coldstart.attempt",
        "coldstart.transfer": "coldstart.attempt",
        "coldstart.pull": "coldstart.transfer",
        "coldstart.verify": "coldstart",
        "coldstart.serve": "coldstart",
        "coldstart.lend": "coldstart.attempt",
    }
    lend = next(span for span in ours if span.name == "coldstart.lend")
    assert lend.attributes is not None
    assert lend.attributes["coldstart.worker"] == "a"
    assert lend.attributes["coldstart.outcome"] == "ok"


async def test_log_events_carry_the_trace(
    spans: InMemorySpanExporter, tmp_path: Path, write_checkpoint: Write
) -> None:
    settings = config.load({"redis": "none"}, environ={})
    try:
        with structlog.testing.capture_logs() as logs:
            structlog.configure()  # as a host would; else the library logs through the standard logger
            async with coldstart.join(write_checkpoint(tmp_path / "m"), skeleton="tensors", settings=settings):
                pass
    finally:
        structlog.reset_defaults()
    root = next(span for span in spans.get_finished_spans() if span.name == "coldstart")
    assert root.context is not None
    entered = [entry for entry in logs if entry["event"] == "phase entered"]
    assert [entry["phase"] for entry in entered][:3] == ["DISCOVER", "FALLBACK", "VERIFY"]
    assert {entry["trace_id"] for entry in entered} == {f"{root.context.trace_id:032x}"}
    assert len({entry["span_id"] for entry in entered}) > 2


async def test_a_failed_start_is_an_error_in_the_trace(
    spans: InMemorySpanExporter, tmp_path: Path, write_checkpoint: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coldstart.skeletons import assembly

    async def broken(self: assembly.StorageReader, spans: object, landed: object) -> None:
        raise coldstart.CheckpointError("disk on fire")

    monkeypatch.setattr(assembly.StorageReader, "read", broken)
    checkpoint = write_checkpoint(tmp_path / "model")
    settings = config.load({"redis": "none"}, environ={})
    with pytest.raises(ColdStartFailed, match="disk on fire"):
        async with coldstart.join(checkpoint, skeleton="tensors", worker="a", settings=settings):
            raise AssertionError("not reached")
    root = next(span for span in spans.get_finished_spans() if span.name == "coldstart")
    assert root.status.status_code is StatusCode.ERROR
    assert "disk on fire" in (root.status.description or "")
    assert {event.name for event in root.events} == {"detour"}


async def test_withheld_weights_are_a_span_that_says_why_and_ends_when_they_are_lent_again(
    spans: InMemorySpanExporter, tmp_path: Path, write_checkpoint: Write
) -> None:
    checkpoint = write_checkpoint(tmp_path / "model")
    settings = config.load({"directory": str(tmp_path / "v"), "scrub": 0.3}, environ={})
    async with coldstart.join(checkpoint, skeleton="tensors", worker="a", settings=settings) as replica:
        weight = replica.module.get_parameter("scale")
        with torch.no_grad():
            weight.add_(1)
        await until(replica, lambda: replica.withheld != "")
        async with replica.changing():
            weight.data.sub_(1)
        await until(replica, lambda: replica.withheld == "")
        span = next(span for span in spans.get_finished_spans() if span.name == "coldstart.withheld")
    assert span.attributes is not None
    assert span.attributes["coldstart.worker"] == "a"
    said = [str((event.attributes or {})["coldstart.reason"]) for event in span.events]
    assert "(scale) is not what was verified" in said[0]
    assert said[1] == "the host changes the weights"


async def until(replica: coldstart.Replica, reached: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not reached():
            await replica._session.changed.wait()


async def test_without_a_provider_nothing_is_set_globally(tmp_path: Path, write_checkpoint: Write) -> None:
    before = trace.get_tracer_provider()
    settings = config.load({"redis": "none"}, environ={})
    async with coldstart.join(write_checkpoint(tmp_path / "model"), skeleton="tensors", settings=settings):
        pass
    assert trace.get_tracer_provider() is before


async def test_what_a_group_decides_is_in_the_trace_of_each_rank(
    spans: InMemorySpanExporter, tmp_path: Path, write_checkpoint: Write
) -> None:
    checkpoint, settings = write_checkpoint(tmp_path / "model"), config.load({"directory": str(tmp_path / "v")}, {})
    groups = [coldstart.Group("run", 2, index) for index in range(2)]
    async with (
        coldstart.join(checkpoint, skeleton="tensors", group=groups[0], settings=settings, wait=False) as zero,
        coldstart.join(checkpoint, skeleton="tensors", group=groups[1], settings=settings) as one,
    ):
        await zero.ready()
        told = {str(verdict) for verdict in one.report.group.verdicts} if one.report.group else set()
    roots = [span for span in spans.get_finished_spans() if span.name == "coldstart"]
    assert len(roots) == 2
    for root in roots:
        verdicts = [event.attributes or {} for event in root.events if event.name == "verdict"]
        assert {str(each["coldstart.verdict"]) for each in verdicts} == told
        assert len(told) == 2
    one, two = ((root.context, root.links) for root in roots)
    for (own, links), (other, _) in ((one, two), (two, one)):
        assert own is not None
        assert other is not None
        (link,) = links
        assert (link.context.trace_id, link.context.span_id) == (other.trace_id, other.span_id)
        assert link.attributes == {"coldstart.relation": "group"}


async def test_a_cold_start_is_a_child_of_what_the_host_is_doing(
    spans: InMemorySpanExporter, tmp_path: Path, write_checkpoint: Write
) -> None:
    settings = config.load({"redis": "none"}, environ={})
    with trace.get_tracer("host").start_as_current_span("deploy") as host:
        async with coldstart.join(write_checkpoint(tmp_path / "model"), skeleton="tensors", settings=settings):
            assert trace.get_current_span() is host
    root = next(span for span in spans.get_finished_spans() if span.name == "coldstart")
    assert root.parent is not None
    assert root.parent.span_id == host.get_span_context().span_id


def test_names_follow_opentelemetrys_rules() -> None:
    """Lower case, dots and underscores; and no attribute is named as the namespace of another."""
    attributes = {value for name, value in vars(names).items() if name.isupper() and "." in value}
    spans = {names.BUILD, names.ATTEMPT, names.PULL, names.READ, names.LEND, names.WITHHELD}
    assert len(attributes - spans) > 20
    for each in attributes:
        assert re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+", each), each
        assert not [other for other in attributes - spans if other.startswith(f"{each}.")], each
