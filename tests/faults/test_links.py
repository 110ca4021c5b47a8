"""Links cut, deaf in one direction, late, narrow and lying."""

from __future__ import annotations

import anyio
import pytest
from rig.case import Case
from rig.fleet import PATIENCE, SLOW, Fleet, Worker
from rig.proxy import Proxy

pytestmark = pytest.mark.faults
fault = pytest.mark.fault

CALL, ANSWER, STALL = 2.0, 2.0, 2.0
ACCEPT = 5.0
LEASE = 6.0
TRANSFER = 3.2
"""What the rest of a transfer at ``SLOW`` takes."""
PAYLOAD_BYTE = 100_000
"""A place on any data connection at which weights stand: frames are short, and the first slice is 256 KiB."""


async def relayed(workers: Fleet, **settings: object) -> tuple[Worker, Proxy]:
    """A source whose joiners come through a proxy."""
    relay = await workers.relay("source")
    return await workers.serving("source", relay=relay, **settings), relay


async def rest_from_storage(joiner: Worker, case: Case, reason: str, *, least: int = 0) -> None:
    """It serves: what came from the source is kept, the rest is read, and the report says why."""
    with case.clock():
        report = await joiner.serving()
    assert report.path == ("mixed" if report.bytes_peer else "storage")
    assert report.bytes_peer >= least
    assert report.bytes_peer + report.bytes_storage == report.bytes_total
    assert report.detours[0].startswith("source: ")
    assert reason in report.detours[0]


# ---------------------------------------------------------------------- between joiner and source


@fault("data link: connections reset", "TRANSFER", "verified chunks kept, rest from storage; it lends again", 0.5)
async def test_data_connections_reset(workers: Fleet, case: Case) -> None:
    source, relay = await relayed(workers, lend_gbps=SLOW)
    joiner = await workers.start("joiner")
    before = await joiner.reached("TRANSFER", nbytes=1)
    relay.cut()
    await rest_from_storage(joiner, case, "closed the connection", least=before.bytes_verified)
    await workers.check(joiner)
    await joiner.leave()
    await workers.check_lends(source)


@pytest.mark.parametrize(
    ("up", "down"), [(True, False), (False, True), (True, True)], ids=["to the source", "to the joiner", "both"]
)
@fault("data link: lost", "TRANSFER", "'stalled'; verified chunks kept, rest from storage; it lends again", 1.0 + STALL)
async def test_data_lost(up: bool, down: bool, workers: Fleet, case: Case) -> None:
    source, relay = await relayed(workers, lend_gbps=SLOW, io_seconds=3.0)
    joiner = await workers.start("joiner")
    before = await joiner.reached("TRANSFER", nbytes=1)
    relay.deaf(up=up, down=down)
    await rest_from_storage(joiner, case, "stalled", least=before.bytes_verified)
    await workers.check(joiner)
    await joiner.leave()
    relay.deaf()
    await workers.check_lends(source)


@fault("data link: refused", "TRANSFER, no byte yet", "storage; the reason", 0.5)
async def test_data_port_refuses(workers: Fleet, case: Case) -> None:
    _, relay = await relayed(workers)
    relay.refuse()
    joiner = await workers.start("joiner")
    await joiner.begun()
    await rest_from_storage(joiner, case, "cannot connect")
    await workers.check(joiner)
    await workers.check_lends(joiner)


@fault("data link: connected, then silent", "TRANSFER, no byte yet", "storage; 'stalled'; it lends again", STALL)
async def test_data_port_is_silent(workers: Fleet, case: Case) -> None:
    source, relay = await relayed(workers)
    relay.deaf(up=True, down=True)
    joiner = await workers.start("joiner")
    await joiner.begun()
    await rest_from_storage(joiner, case, "stalled")
    await joiner.leave()
    relay.deaf()
    await workers.check_lends(source)


@fault("data link: 100 ms late", "TRANSFER", "all from the peer", 5.0)
async def test_data_late(workers: Fleet, case: Case) -> None:
    _, relay = await relayed(workers)
    relay.up.delay = relay.down.delay = 0.1
    await _all_from_the_peer(workers, case)


@fault("data link: 15 MB/s", "TRANSFER", "all from the peer", 2.0)
async def test_data_narrow(workers: Fleet, case: Case) -> None:
    _, relay = await relayed(workers)
    relay.down.rate = 15e6
    await _all_from_the_peer(workers, case)


async def _all_from_the_peer(workers: Fleet, case: Case) -> None:
    joiner = await workers.start("joiner")
    await joiner.begun()
    with case.clock():
        report = await joiner.serving()
    assert (report.path, report.sources, report.detours) == ("peer", ("source",), ())
    await workers.check(joiner)


@fault("data link: trickles, 1 MB/s", "TRANSFER", "'too slow'; verified chunks kept, rest from storage", 5.6)
async def test_data_trickles(workers: Fleet, case: Case) -> None:
    source, relay = await relayed(workers)
    relay.down.rate = 1e6
    joiner = await workers.start("joiner")
    await joiner.reached("TRANSFER")
    await rest_from_storage(joiner, case, "source: too slow", least=1)
    await workers.check(joiner)
    await joiner.leave()
    relay.down.rate = 0
    await workers.check_lends(source)


@fault("data link: nearly dry, 50 kB/s", "TRANSFER", "'stalled'; rest from storage", STALL)
async def test_data_nearly_dry(workers: Fleet, case: Case) -> None:
    source, relay = await relayed(workers)
    relay.down.rate = 5e4
    joiner = await workers.start("joiner")
    await joiner.reached("TRANSFER")
    await rest_from_storage(joiner, case, "stalled")
    await workers.check(joiner)
    await joiner.leave()
    relay.down.rate = 0
    await workers.check_lends(source)


@fault("data link: one bit turned", "TRANSFER", "'wrong bytes'; not asked again; rest from storage", 0.5)
async def test_data_wrong(workers: Fleet, case: Case) -> None:
    source, relay = await relayed(workers)
    relay.down.flip = PAYLOAD_BYTE
    joiner = await workers.start("joiner")
    await joiner.begun()
    await rest_from_storage(joiner, case, "has wrong bytes")
    assert relay.down.flipped
    report = await joiner.serving()
    assert [attempt.source for attempt in report.attempts] == ["source", "storage"]
    await workers.check(joiner)
    await joiner.leave()
    await workers.check_lends(source)


@fault("data link: one bit turned, of two sources", "TRANSFER", "'wrong bytes'; the rest from the other", 0.5)
async def test_data_wrong_from_one_of_two(workers: Fleet, case: Case) -> None:
    _, relay = await relayed(workers)
    await workers.serving("second", slots=1)  # fewer free slots: it is claimed after the other
    relay.down.flip = PAYLOAD_BYTE
    joiner = await workers.start("joiner")
    await joiner.begun()
    with case.clock():
        report = await joiner.serving()
    assert relay.down.flipped
    assert (report.path, report.bytes_storage) == ("peer", 0)
    assert [attempt.source for attempt in report.attempts] == ["source", "second"]
    assert "has wrong bytes" in report.detours[0]
    await workers.check(joiner)


@pytest.mark.parametrize(
    ("way", "byte", "reason"),
    [
        pytest.param("up", 25, "does not know this ticket", id="secret"),
        pytest.param("up", 36 + 7, "broke the protocol", id="request"),
        pytest.param("down", 0, "broke the protocol", id="status"),
        pytest.param("down", 17 + 8, "broke the protocol", id="offset"),
    ],
)
@fault("data link: a frame changed", "TRANSFER", "storage; the reason; it lends again", 0.5)
async def test_frames_wrong(way: str, byte: int, reason: str, workers: Fleet, case: Case) -> None:
    source, relay = await relayed(workers)
    turned = relay.up if way == "up" else relay.down
    turned.flip = byte
    joiner = await workers.start("joiner")
    await joiner.begun()
    await rest_from_storage(joiner, case, reason)
    assert turned.flipped
    await workers.check(joiner)
    await joiner.leave()
    await workers.check_lends(source)


# ------------------------------------------------------------------- between a worker and the store


@fault("joiner's store link: closed", "HANDSHAKE", "no effect", 1.0)
async def test_store_link_closed_in_a_handshake(workers: Fleet, case: Case) -> None:
    source, proxy = await workers.serving("source"), await workers.proxy()
    source.stop()
    proxy.down.trap = b"digests"  # the truth
    joiner = await workers.start("joiner", url=proxy.url)
    await proxy.down.trapped.wait()
    await proxy.down.let_pass()
    proxy.hang_up()
    source.resume()
    with case.clock():
        report = await joiner.serving()
    assert (report.path, report.sources, report.detours) == ("peer", ("source",), ())
    await workers.check(joiner)


@fault("joiner's store link: answer to the claim lost", "DISCOVER", "storage; the slot is free again", ACCEPT)
async def test_claim_whose_answer_is_lost(workers: Fleet, case: Case) -> None:
    source, proxy = await workers.serving("source"), await workers.proxy()
    proxy.down.trap = b"granted"
    joiner = await workers.start("joiner", url=proxy.url)
    await proxy.down.trapped.wait()
    proxy.deaf(down=True)
    proxy.down.release()
    with case.clock():
        report = await joiner.serving()
        await workers.lends_nothing(source)
    assert report.path == "storage"
    assert "answer" in report.detours[0]
    await workers.check(joiner)
    proxy.deaf()
    await joiner.leave()
    await workers.check_lends(source)


@pytest.mark.parametrize(("up", "down"), [(True, False), (False, True)], ids=["requests", "answers"])
@fault("joiner's store link: lost", "HANDSHAKE", "storage; advertised when mended", ANSWER + CALL)
async def test_store_link_lost_in_a_handshake(up: bool, down: bool, workers: Fleet, case: Case) -> None:
    source, proxy = await workers.serving("source"), await workers.proxy()
    source.stop()
    joiner = await workers.start("joiner", url=proxy.url)
    await joiner.reached("HANDSHAKE")
    proxy.deaf(up=up, down=down)
    source.resume()
    with case.clock():
        report = await joiner.serving()
    assert report.path == "storage"
    await workers.check(joiner)
    proxy.deaf()
    with anyio.fail_after(PATIENCE):
        await workers.advertised("joiner")
    await joiner.leave()
    await workers.check_lends(source)


@pytest.mark.parametrize(
    ("up", "down"),
    [
        pytest.param(True, False, id="requests"),
        pytest.param(False, True, id="answers"),
    ],
)
@fault("joiner's store link: lost", "TRANSFER", "all from the peer; its slot is free", TRANSFER + 2 * CALL)
async def test_store_link_lost_in_a_transfer(up: bool, down: bool, workers: Fleet, case: Case) -> None:
    source, proxy = await workers.serving("source", lend_gbps=SLOW), await workers.proxy()
    joiner = await workers.start("joiner", url=proxy.url)
    await joiner.reached("TRANSFER", nbytes=1)
    proxy.deaf(up=up, down=down)
    with case.clock():
        report = await joiner.serving()
    assert (report.path, report.sources, report.detours) == ("peer", ("source",), ())
    await workers.check(joiner)
    with anyio.fail_after(LEASE):
        await workers.lends_nothing(source)
    proxy.deaf()
    with anyio.fail_after(PATIENCE):
        await workers.advertised("joiner")


@pytest.mark.parametrize(("up", "down"), [(True, False), (False, True)], ids=["requests", "answers"])
@fault("source's store link: lost", "HANDSHAKE", "storage; it lends when mended", ANSWER)
async def test_source_that_hears_nothing(up: bool, down: bool, workers: Fleet, case: Case) -> None:
    proxy = await workers.proxy()
    source = await workers.serving("source", url=proxy.url)
    with anyio.fail_after(PATIENCE):
        await workers.advertised("source")
    proxy.deaf(up=up, down=down)
    joiner = await workers.start("joiner")
    await joiner.reached("HANDSHAKE")
    await rest_from_storage(joiner, case, "no answer")
    await workers.check(joiner)
    await joiner.leave()
    proxy.deaf()
    await workers.check_lends(source)
