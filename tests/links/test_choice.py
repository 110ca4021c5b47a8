"""Which of two transports a fleet uses when it knows how fast each was, and what its reports say of the link."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import pytest

from coldstart.errors import TransportError
from coldstart.layout import Span
from coldstart.links.memory import Links
from coldstart.links.rates import Path, Rate
from coldstart.plan import Limits
from coldstart.ports import Landed, Memory
from coldstart.testing.harness import FakeStorage, Fleet, Member, Wrap, fleet
from coldstart.testing.memories import layout_of
from coldstart.testing.transports import Breaking, Corrupting, LoopbackTransport, Lying
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime

LAYOUT = layout_of(16 << 20, chunk_bytes=1 << 20)
HOST = "127.0.0.1"
LIMITS = Limits(floor=1e6)


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


def links(**rates: float) -> Links:
    known = {
        Path("me", "cpu", HOST, "cpu", transport): Rate(rate, "probe", time.time() - 60)
        for transport, rate in rates.items()
    }
    return Links(None, "cpu", known, here="me")


def start(
    workers: Fleet,
    name: str,
    known: Links | None = None,
    second: type[LoopbackTransport] = LoopbackTransport,
    wrap: Wrap = lambda inner: inner,
    *,
    ordered: bool = False,
) -> Member:
    """A worker with two transports: ``loopback``, wrapped, and ``other`` after it."""
    other = second(workers.hub, LAYOUT.nbytes, LAYOUT.chunk_bytes, name="other")
    storage = FakeStorage(workers.weights(LAYOUT))
    return workers.start(
        name,
        layout=LAYOUT,
        storage=storage,
        transport=wrap,
        others={"other": other},
        links=known,
        ordered=ordered,
    )


@pytest.mark.parametrize(
    ("rates", "used"),
    [
        ({}, "loopback"),
        ({"loopback": 2e9, "other": 1e9}, "loopback"),
        ({"loopback": 1e9, "other": 2e9}, "other"),
        ({"other": 2e9}, "loopback"),
    ],
    ids=["nothing known", "the first is quicker", "the second is quicker", "the first was never tried"],
)
async def test_the_quicker_one_is_used(rates: Mapping[str, float], used: str) -> None:
    async with fleet(LIMITS) as workers:
        await start(workers, "a").lends()
        report = await start(workers, "b", links(**rates)).ready()
        assert (report.path, report.transport) == ("peer", used)


async def test_the_operators_order_stands_whatever_was_measured() -> None:
    async with fleet(LIMITS) as workers:
        await start(workers, "a").lends()
        report = await start(workers, "b", links(loopback=1e9, other=2e9), ordered=True).ready()
        assert report.transport == "loopback"


async def test_what_is_known_of_another_host_decides_nothing_here() -> None:
    elsewhere = {
        Path("me", "cpu", "10.0.0.7", "cpu", transport): Rate(rate, "probe", time.time())
        for transport, rate in (("loopback", 1e9), ("other", 2e9))
    }
    async with fleet(LIMITS) as workers:
        await start(workers, "a").lends()
        report = await start(workers, "b", Links(None, "cpu", elsewhere, here="me")).ready()
        assert report.transport == "loopback"


@pytest.mark.parametrize(
    "fault",
    [Lying, lambda inner: Corrupting(inner, 0), lambda inner: Breaking(inner, LAYOUT.nbytes // 2)],
    ids=["it lies", "it corrupts", "it breaks off"],
)
async def test_what_cannot_be_trusted_is_not_remembered_as_quick(fault: Wrap) -> None:
    """Not even if it seemed to be: the next start would prefer it."""
    async with fleet(LIMITS) as workers:
        await start(workers, "a").lends()
        known = links()
        b = start(workers, "b", known, wrap=fault)
        assert (await b.ready()).verified
        assert "loopback" not in known.hosts().get(HOST, {})
        c = start(workers, "c", known)
        assert (await c.ready()).transport == "loopback"
        assert "loopback" in known.hosts().get(HOST, {})


class Refusing(LoopbackTransport):
    """Cannot pull at all, however fast it was yesterday."""

    async def pull(self, ticket: bytes, spans: Sequence[Span], into: Memory, landed: Landed) -> None:
        raise TransportError("no such device", reason="unsupported")


async def test_a_quick_one_that_fails_is_dropped_for_the_next() -> None:
    async with fleet(LIMITS) as workers:
        await start(workers, "a").lends()
        report = await start(workers, "b", links(loopback=1e9, other=2e9), second=Refusing).ready()
        assert (report.path, report.transport) == ("peer", "loopback")
        assert any("over other" in reason for reason in report.detours)


async def test_the_report_says_what_the_link_has_given_and_what_the_transfer_reached_of_it() -> None:
    async with fleet(LIMITS) as workers:
        await start(workers, "a").lends()
        known = links(loopback=4 * LAYOUT.nbytes)
        report = await start(workers, "b", known).ready()
        assert report.link_gbps == pytest.approx(4 * LAYOUT.nbytes / 1e9)
        assert report.link_from == "probe"
        assert report.link_age == pytest.approx(60, abs=30)
        assert report.share == pytest.approx(0.25, rel=0.01)
        assert report.warnings == ()


async def test_a_start_from_storage_says_nothing_of_links() -> None:
    async with fleet(LIMITS) as workers:
        report = await start(workers, "a").lends()
        assert (report.link_gbps, report.link_from, report.link_age, report.share) == (0.0, "none", 0.0, 0.0)
