"""Connections that are set up before the first byte: once per attempt, for all its pulls, and never left behind."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from coldstart.errors import TransportError
from coldstart.phases.states import Gone
from coldstart.plan import Limits
from coldstart.ports import Transport
from coldstart.testing.harness import LAYOUT, Fleet, Member, fleet
from coldstart.testing.transports import Breaking, Dialling
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime

LIMITS = Limits()


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


def dialling(
    seconds: float = 0.1, error: Exception | None = None, fault: Callable[[Transport], Transport] = lambda inner: inner
) -> Callable[[Transport], Transport]:
    return lambda inner: Dialling(fault(inner), seconds, error)


def log(member: Member) -> list[str]:
    assert isinstance(member.transport, Dialling)
    return member.transport.log


async def joined(workers: Fleet, wrap: Callable[[Transport], Transport]) -> Member:
    """A joiner beside a worker that lends."""
    await workers.start("a").lends()
    return workers.start("b", transport=wrap)


async def test_it_is_set_up_in_handshake_and_taken_down_with_the_slot() -> None:
    async with fleet() as workers:
        b = await joined(workers, dialling(0.5))
        report = await b.ready()
        assert (report.path, report.bytes_peer) == ("peer", LAYOUT.payload)
        assert report.phases["handshake"] == pytest.approx(0.5, abs=0.1)
        assert log(b) == ["connecting", "connected", "pull", "disconnected"]


async def test_many_pulls_from_a_source_that_still_receives_use_one() -> None:
    async with fleet() as workers:
        workers.start("a")
        await anyio.sleep(1.0)
        b = workers.start("b", transport=dialling())
        assert (await b.ready()).bytes_storage == 0
        done = log(b)
        assert done.count("pull") > 2, "else this tests nothing"
        assert (done.count("connecting"), done.count("disconnected"), done.count("pull by itself")) == (1, 1, 0)


async def test_one_that_takes_too_long_is_given_up() -> None:
    async with fleet() as workers:
        b = await joined(workers, dialling(60.0))
        report = await b.ready()
        assert report.path == "storage"
        assert log(b) == ["connecting", "given up"]
        assert any("no connection" in reason for reason in report.detours)
        assert report.phases["handshake"] == pytest.approx(LIMITS.connect, abs=0.1)


@pytest.mark.parametrize(
    "error", [TransportError("nobody there", reason="unreachable"), RuntimeError("a bug")], ids=["refused", "broken"]
)
async def test_one_that_fails_costs_no_stall(error: Exception) -> None:
    async with fleet() as workers:
        b = await joined(workers, dialling(0.1, error))
        report = await b.ready()
        assert report.path == "storage"
        assert report.phases["handshake"] < 0.3
        assert any(str(error) in reason for reason in report.detours)
        assert log(b) == ["connecting"]


async def test_it_is_taken_down_after_a_transfer_that_broke() -> None:
    async with fleet() as workers:
        b = await joined(workers, dialling(fault=lambda inner: Breaking(inner, 100_000)))
        await b.ready()
        assert log(b) == ["connecting", "connected", "pull", "disconnected"]


async def test_a_joiner_that_is_asked_to_leave_gives_it_up() -> None:
    async with fleet() as workers:
        b = await joined(workers, dialling(1.0))
        await anyio.sleep(0.5)
        await b.drain()
        await b.reached(Gone)
        await anyio.sleep(0.1)
        assert log(b) == ["connecting", "given up"]
