"""Policies: plain functions that choose among sources; a bad one makes a start slower, never wrong."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from coldstart.bus.limits import MAX_PREFERRED
from coldstart.policies import HEARD, Here, Prefer, complete, heard, quickest
from coldstart.ports import Advert
from coldstart.testing.harness import fleet
from coldstart.testing.simulator import Scenario, simulate
from coldstart.testing.virtual_time import VIRTUAL_TIME, VirtualTime


@pytest.fixture
def anyio_backend() -> VirtualTime:
    return VIRTUAL_TIME


def advert(worker: str, host: str = "", have: int = 4, used: int = 0) -> Advert:
    return Advert(worker, f"{worker}.1", "1", 1, "aa", 2, have, 4, ("tcp",), host, "cpu", used=used)


def test_the_quickest_known_link_comes_first_shared_with_who_reads_there() -> None:
    here = Here("j", rates={"x": 10.0, "y": 8.0})
    adverts = [advert("far", "z"), advert("busy", "x", used=1), advert("free", "y"), advert("b", "x", used=1)]
    assert list(quickest(here, adverts)) == ["free", "b", "busy"]
    assert list(quickest(Here("j"), adverts)) == []


def test_complete_ones_only() -> None:
    assert list(complete(Here("j"), [advert("a", have=3), advert("b")])) == ["b"]


def test_only_a_few_and_only_those_that_are_there_are_named_to_the_store() -> None:
    adverts = [advert(f"w{number}") for number in range(500)]
    assert heard(lambda here, found: ["no body", "", "w7"], Here("j"), adverts) == ("w7",)
    assert heard(complete, Here("j"), adverts) == tuple(f"w{number}" for number in range(HEARD))
    assert HEARD <= MAX_PREFERRED


def last(here: Here, adverts: Sequence[Advert]) -> Sequence[str]:
    return sorted((each.worker for each in adverts), reverse=True)


def broken(here: Here, adverts: Sequence[Advert]) -> Sequence[str]:
    raise ZeroDivisionError


async def test_a_policy_decides_among_those_that_will_do() -> None:
    async with fleet() as workers:
        for name in "abc":
            await workers.start(name).lends()
        assert (await workers.start("d", prefer=last).ready()).sources == ("c",)
        assert (await workers.start("e", prefer=lambda here, adverts: ["a", "nobody"]).ready()).sources == ("a",)


async def test_a_policy_that_breaks_has_no_say() -> None:
    async with fleet() as workers:
        await workers.start("a").lends()
        report = await workers.start("b", prefer=broken).ready()
        assert report.path == "peer"
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("prefer", [last, complete, quickest])
def test_the_same_functions_run_in_the_simulator(prefer: Prefer) -> None:
    outcome = simulate(replace(Scenario(workers=16, chunks=8), prefer=prefer), seed=1)
    assert not outcome.violations
    assert outcome.storage_reads == 1
