"""Real cold starts over tcp: the first probes the link, the next one knows it, and both say what it gave."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import coldstart
from coldstart import config
from coldstart.config import Settings
from coldstart.links.memory import Links, recall
from coldstart.links.mounts import mount_of

Write = Callable[..., Path]


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Settings]:
    return lambda **chosen: config.load({"directory": str(tmp_path / "v"), **chosen}, environ={})


async def joined(stack: AsyncExitStack, checkpoint: Path, settings: Settings, worker: str) -> coldstart.Report:
    replica = await stack.enter_async_context(
        coldstart.join(checkpoint, skeleton="tensors", worker=worker, settings=settings)
    )
    return replica.report


async def written(cache: Path) -> None:
    """Rates of links are written behind the cold start; that of storage may be there before."""
    with anyio.fail_after(20):
        while not any(b'"tcp"' in file.read_bytes() for file in cache.glob("*.json")):
            await anyio.sleep(0.01)


async def test_a_link_is_probed_once_and_remembered(
    tmp_path: Path, write_checkpoint: Write, settings: Callable[..., Settings], cache: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path / "model")
    async with AsyncExitStack() as stack:
        first = await joined(stack, checkpoint, settings(), "a")
        assert (first.path, first.link_from, first.link_gbps, first.share) == ("storage", "none", 0.0, 0.0)
        second = await joined(stack, checkpoint, settings(), "b")
        assert (second.path, second.link_from) == ("peer", "probe")
        assert second.link_gbps > 0
        assert 0 < second.share <= 1
        await written(cache)
        third = await joined(stack, checkpoint, settings(), "c")
        assert third.path == "peer"
        assert third.link_gbps >= second.link_gbps
        assert third.link_age > 0 or third.link_from == "transfer", "it was known, or this one was quicker"
        assert (second.warnings, third.warnings) == ((), ())


async def test_what_storage_gave_is_remembered_by_its_mount(
    tmp_path: Path, write_checkpoint: Write, settings: Callable[..., Settings], cache: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path / "model")
    async with AsyncExitStack() as stack:
        report = await joined(stack, checkpoint, settings(redis="none"), "a")
        assert (report.path, report.estimates) == ("storage", ())
        with anyio.fail_after(20):
            while not list(cache.glob("*.json")):
                await anyio.sleep(0.01)
    known = Links(cache, "cpu", await recall(cache))
    assert known.storage(mount_of(checkpoint)) > 0
    assert known.best_by_host() == {}


async def test_a_damaged_cache_changes_nothing(
    tmp_path: Path, write_checkpoint: Write, settings: Callable[..., Settings], cache: Path
) -> None:
    cache.mkdir(parents=True, mode=0o700)
    (cache / "0.json").write_bytes(b"\xff{")
    checkpoint = write_checkpoint(tmp_path / "model")
    async with AsyncExitStack() as stack:
        await joined(stack, checkpoint, settings(), "a")
        report = await joined(stack, checkpoint, settings(), "b")
        assert (report.path, report.link_from) == ("peer", "probe")


async def test_without_a_cache_nothing_is_probed_or_written(
    tmp_path: Path, write_checkpoint: Write, settings: Callable[..., Settings], cache: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path / "model")
    async with AsyncExitStack() as stack:
        await joined(stack, checkpoint, settings(cache="none"), "a")
        report = await joined(stack, checkpoint, settings(cache="none"), "b")
        assert (report.link_from, report.share) == ("transfer", pytest.approx(1.0))
    assert not cache.exists()


async def test_a_slow_link_is_one_warning_in_report_log_and_trace(
    tmp_path: Path,
    write_checkpoint: Write,
    settings: Callable[..., Settings],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    checkpoint = write_checkpoint(tmp_path / "model")
    with caplog.at_level(logging.WARNING, "coldstart"):
        async with AsyncExitStack() as stack:
            await joined(stack, checkpoint, settings(), "a")
            report = await joined(stack, checkpoint, settings(warn_gbps=9000), "b")
    (warning,) = report.warnings
    assert "a over tcp gave" in warning
    assert "under the floor of 9000 GB/s" in warning
    assert [warning in record.getMessage() for record in caplog.records if "slow link" in record.getMessage()] == [True]
    spans = exporter.get_finished_spans()
    transfer = next(span for span in spans if span.name == "coldstart.pull")
    assert transfer.attributes is not None
    assert transfer.attributes["coldstart.link.origin"] == "probe"
    assert transfer.attributes["coldstart.link.rate"] == pytest.approx(report.link_gbps * 1e9)
    assert transfer.attributes["coldstart.link.share"] == pytest.approx(report.share)
    assert [event.name for span in spans for event in span.events if event.name != "entered"] == ["slow link"]
    provider.shutdown()
