"""Processes killed and stopped."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rig.case import Case
from rig.fleet import PAUSE, SLOW, Fleet, Worker
from rig.proxy import Proxy

pytestmark = pytest.mark.faults
fault = pytest.mark.fault

ANSWER, STALL = 2.0, 2.0
LEAD = 3.5
"""A loader's lease, and the next claim of whoever waits for it."""
LEASE = 3.0
"""Of the adverts where a case waits for renewals."""
UNSEEN = 3 * LEASE / 3
"""A joiner that was seen at a renewal of the advert, and then twice was not, is gone."""
IO = 3.0
"""A connection on which nothing moves for so long is dead; a setting of the source."""
ACCEPT = 5.0
"""An offer that nobody accepts is taken back after this."""

Strike = Callable[[Worker], None]
KILL, STOP, CONTINUE = Worker.kill, Worker.stop, Worker.pause
NAMES = {KILL: "killed", STOP: "stopped", CONTINUE: "stopped 5 s"}


def strikes(*chosen: Strike) -> pytest.MarkDecorator:
    """A case for each way to strike a process."""
    return pytest.mark.parametrize("strike", chosen, ids=[NAMES[strike] for strike in chosen])


async def held_in_discover(workers: Fleet) -> tuple[Worker, Proxy]:
    """A joiner whose claim was granted and that does not know it yet."""
    proxy = await workers.proxy()
    proxy.down.trap = b"granted"
    joiner = await workers.start("joiner", url=proxy.url)
    await proxy.down.trapped.wait()
    return joiner, proxy


# ----------------------------------------------------------------------------------- the source


@strikes(KILL, CONTINUE, STOP)
@fault("source", "DISCOVER", "storage; 'no answer'; one that goes on lends", ANSWER)
async def test_source_while_it_is_claimed(strike: Strike, workers: Fleet, case: Case) -> None:
    source = await workers.serving("source")
    joiner, proxy = await held_in_discover(workers)
    strike(source)
    proxy.down.release()
    await _storage_after_no_answer(strike, source, joiner, workers, case)


@strikes(KILL, CONTINUE, STOP)
@fault("source", "HANDSHAKE", "storage; 'no answer'; one that goes on lends", ANSWER)
async def test_source_while_it_is_asked(strike: Strike, workers: Fleet, case: Case) -> None:
    source = await workers.serving("source")
    source.stop()
    joiner = await workers.start("joiner")
    await joiner.reached("HANDSHAKE")
    strike(source)
    await _storage_after_no_answer(strike, source, joiner, workers, case)


async def _storage_after_no_answer(
    strike: Strike, source: Worker, joiner: Worker, workers: Fleet, case: Case
) -> None:
    with case.clock():
        report = await joiner.serving()
    assert (report.path, report.bytes_peer) == ("storage", 0)
    assert report.detours[0] == "source: no answer"
    assert report.against == "published truth"
    await workers.check(joiner)
    if strike is CONTINUE:
        await joiner.leave()
        await workers.check_lends(source)
    else:
        await workers.check_lends(joiner)


@fault("first of two sources stopped", "HANDSHAKE", "all from the second one", ANSWER)
async def test_the_next_source_is_asked(workers: Fleet, case: Case) -> None:
    first, second = await workers.serving("first"), await workers.serving("second", slots=1)
    first.stop()  # more free slots: it is claimed first
    joiner = await workers.start("joiner")
    await joiner.reached("HANDSHAKE")
    with case.clock():
        report = await joiner.serving()
    assert (report.path, report.sources, report.detours) == ("peer", ("second",), ("first: no answer",))
    await workers.check(joiner, second)


@strikes(KILL, CONTINUE, STOP)
@fault("source", "TRANSFER", "verified chunks kept, rest from storage; one that goes on lends", STALL)
async def test_source_while_it_sends(strike: Strike, workers: Fleet, case: Case) -> None:
    source = await workers.serving("source", lend_gbps=SLOW)
    joiner = await workers.start("joiner")
    before = await joiner.reached("TRANSFER", nbytes=1)
    strike(source)
    with case.clock():
        report = await joiner.serving()
    assert (report.path, report.sources) == ("mixed", ("source",))
    assert report.bytes_peer >= before.bytes_verified
    assert report.bytes_peer + report.bytes_storage == report.bytes_total
    reason = "closed the connection" if strike is KILL else "source: stalled"
    assert reason in report.detours[0]
    await workers.check(joiner)
    if strike is CONTINUE:
        await joiner.leave()
        await workers.check_lends(source)
    else:
        await workers.check_lends(joiner)


@fault("first of two sources killed", "TRANSFER", "the rest from the second one", 0.5)
async def test_the_next_source_sends_the_rest(workers: Fleet, case: Case) -> None:
    first, second = await workers.serving("first", lend_gbps=SLOW), await workers.serving("second", slots=1)
    joiner = await workers.start("joiner")
    before = await joiner.reached("TRANSFER", nbytes=1)
    first.kill()
    with case.clock():
        report = await joiner.serving()
    assert (report.path, set(report.sources)) == ("peer", {"first", "second"})
    assert report.attempts[0].bytes >= before.bytes_verified
    assert report.attempts[0].bytes + report.attempts[1].bytes == report.bytes_total
    await workers.check(joiner, second)


@strikes(KILL, CONTINUE, STOP)
@fault("source", "VERIFY", "no effect", 0.0)
async def test_source_when_all_was_sent(strike: Strike, workers: Fleet, case: Case) -> None:
    source = await workers.serving("source")
    joiner = await workers.start("joiner", gated=True)
    await joiner.reached("VERIFY")
    strike(source)
    workers.open_gate()
    with case.clock():
        report = await joiner.serving()
    assert (report.path, report.sources, report.detours) == ("peer", ("source",), ())
    await workers.check(joiner)
    if strike is CONTINUE:
        await joiner.leave()
        await workers.check_lends(source)


# ----------------------------------------------------------------------------- who reads storage


@pytest.mark.parametrize("where", ["FALLBACK", "VERIFY"])
@strikes(KILL, STOP)
@fault("loader", "its FALLBACK or VERIFY", "who waits for it reads storage", LEAD)
async def test_loader_that_others_wait_for(strike: Strike, where: str, workers: Fleet, case: Case) -> None:
    disk = "stall:1" if where == "FALLBACK" else ""
    loader = await workers.start("loader", gated=where == "VERIFY", disk=disk)
    await loader.reached(where)
    joiner = await workers.start("joiner")
    await joiner.begun()
    strike(loader)
    with case.clock():
        report = await joiner.serving()
    assert (report.path, report.bytes_peer) == ("storage", 0)
    await workers.check(joiner)
    await workers.check_lends(joiner)


@fault("loader stopped 5 s", "its VERIFY", "both read storage, both serve the same", PAUSE)
async def test_loader_that_comes_back(workers: Fleet, case: Case) -> None:
    loader = await workers.start("loader", gated=True)
    await loader.reached("VERIFY")
    joiner = await workers.start("joiner")
    await joiner.begun()
    loader.pause()
    workers.open_gate()
    with case.clock():
        roots = {(await worker.serving()).root for worker in (loader, joiner)}
    assert len(roots) == 1
    await workers.check(loader, joiner)
    await loader.leave()
    await workers.check_lends(joiner)


# ----------------------------------------------------------------------------------- the joiner


@strikes(KILL, CONTINUE, STOP)
@fault("joiner", "DISCOVER", "its slot is free; one that goes on serves", ACCEPT)
async def test_joiner_that_has_claimed(strike: Strike, workers: Fleet, case: Case) -> None:
    source = await workers.serving("source")
    joiner, proxy = await held_in_discover(workers)
    strike(joiner)
    proxy.down.release()
    await _slot_is_free(strike, source, joiner, workers, case)


@strikes(KILL, CONTINUE, STOP)
@fault("joiner", "HANDSHAKE", "its slot is free; one that goes on serves", ACCEPT)
async def test_joiner_that_has_asked(strike: Strike, workers: Fleet, case: Case) -> None:
    source = await workers.serving("source")
    source.stop()
    joiner = await workers.start("joiner")
    await joiner.reached("HANDSHAKE")
    strike(joiner)
    source.resume()
    await _slot_is_free(strike, source, joiner, workers, case)


@strikes(KILL, CONTINUE, STOP)
@fault("joiner", "TRANSFER", "its slot is free; one that goes on serves", IO + UNSEEN)
async def test_joiner_that_receives(strike: Strike, workers: Fleet, case: Case) -> None:
    source = await workers.serving("source", lend_gbps=SLOW, lease=LEASE, io_seconds=IO)
    joiner = await workers.start("joiner")
    await joiner.reached("TRANSFER", nbytes=int(SLOW * 1e9 * 1.5 * LEASE / 3))  # seen at a renewal
    strike(joiner)
    await _slot_is_free(strike, source, joiner, workers, case)


@fault("joiner killed at once", "TRANSFER", "its slot is free", UNSEEN)
async def test_joiner_that_has_just_begun_to_receive(workers: Fleet, case: Case) -> None:
    source = await workers.serving("source", lend_gbps=SLOW, lease=1.5 * LEASE)
    joiner = await workers.start("joiner")
    await joiner.reached("TRANSFER", nbytes=1)
    joiner.kill()
    await _slot_is_free(KILL, source, joiner, workers, case)


@strikes(KILL, CONTINUE, STOP)
@fault("joiner", "VERIFY", "its slot was free before; one that goes on serves", PAUSE)
async def test_joiner_that_has_all(strike: Strike, workers: Fleet, case: Case) -> None:
    source = await workers.serving("source")
    joiner = await workers.start("joiner", gated=True)
    await joiner.reached("VERIFY")
    await workers.lends_nothing(source)
    strike(joiner)
    workers.open_gate()
    await _slot_is_free(strike, source, joiner, workers, case)


async def _slot_is_free(strike: Strike, source: Worker, joiner: Worker, workers: Fleet, case: Case) -> None:
    with case.clock():
        await workers.lends_nothing(source)
        report = await joiner.serving() if strike is CONTINUE else None
    await workers.check(source)
    if report is not None:
        assert report.bytes_peer + report.bytes_storage == report.bytes_total
        await workers.check(joiner)
        await joiner.leave()
    await workers.check_lends(source)
