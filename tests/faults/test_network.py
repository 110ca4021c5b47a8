"""A network that goes away without a word."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from rig.case import Case
from rig.fleet import SLOW, Fleet, Worker
from rig.network import SOURCE_ADDRESS, Network, network

pytestmark = pytest.mark.faults
fault = pytest.mark.fault

STALL = 2.0
IO, LEASE = 3.0, 3.0
TRANSFER = 3.2


@pytest.fixture
def net() -> Iterator[Network]:
    with network() as made:
        yield made


async def serving(workers: Fleet, net: Network) -> Worker:
    return await workers.serving(
        "source", namespace=net.source, host=SOURCE_ADDRESS, lend_gbps=SLOW, io_seconds=IO, lease=LEASE
    )


@fault("link cut", "TRANSFER", "'stalled'; verified chunks kept, rest from storage; it lends when mended", STALL)
async def test_a_link_that_is_cut(net: Network, workers: Fleet, case: Case) -> None:
    source = await serving(workers, net)
    joiner = await workers.start("joiner", namespace=net.joiner)
    before = await joiner.reached("TRANSFER", nbytes=1)
    net.cut()
    with case.clock():
        report = await joiner.serving()
    assert (report.path, report.detours) == ("mixed", ("source: stalled",))
    assert report.bytes_peer >= before.bytes_verified
    await workers.check(joiner, source)
    await joiner.leave()
    net.mend()
    await workers.check_lends(source, namespace=net.joiner)


@fault("link cut for 0.5 s", "TRANSFER", "no effect", TRANSFER + 0.5)
async def test_a_link_that_comes_back(net: Network, workers: Fleet, case: Case) -> None:
    await serving(workers, net)
    joiner = await workers.start("joiner", namespace=net.joiner)
    await joiner.reached("TRANSFER", nbytes=1)
    net.cut()
    asyncio.get_running_loop().call_later(0.5, net.mend)
    with case.clock():
        report = await joiner.serving()
    assert (report.path, report.sources, report.detours) == ("peer", ("source",), ())
    await workers.check(joiner)


@fault("link cut before", "TRANSFER, no byte yet", "storage; 'stalled'; it lends when mended", STALL)
async def test_a_link_that_was_never_there(net: Network, workers: Fleet, case: Case) -> None:
    source = await serving(workers, net)
    net.cut()
    joiner = await workers.start("joiner", namespace=net.joiner)
    await joiner.reached("TRANSFER")
    with case.clock():
        report = await joiner.serving()
    assert (report.path, report.detours) == ("storage", ("source: stalled",))
    await workers.check(joiner)
    await joiner.leave()
    net.mend()
    await workers.check_lends(source, namespace=net.joiner)


@fault("link cut, and the joiner killed", "TRANSFER", "its slot is free; it lends when mended", IO + LEASE)
async def test_a_joiner_whose_machine_is_gone(net: Network, workers: Fleet, case: Case) -> None:
    source = await serving(workers, net)
    joiner = await workers.start("joiner", namespace=net.joiner)
    await joiner.reached("TRANSFER", nbytes=int(SLOW * 1e9 * 1.5 * LEASE / 3))  # seen at a renewal
    net.cut()
    joiner.kill()
    with case.clock():
        await workers.lends_nothing(source)
    net.mend()
    await workers.check_lends(source, namespace=net.joiner)
