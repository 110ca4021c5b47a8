"""The store killed, emptied, stopped, full, read-only, failed over and slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import anyio
import pytest
from rig.case import Case
from rig.fleet import PATIENCE, SLOW, Fleet, Worker
from rig.store import Store

from coldstart.portions import NARROW, OUTRUN

pytestmark = pytest.mark.faults
fault = pytest.mark.fault

CALL = 2.0
"""Deadline of one call."""
ANSWER = 2.0
TRANSFER = 3.2
"""What the rest of a transfer at ``SLOW`` takes."""
RENEWAL = 3.0
"""From a store that works again to all adverts in it: a renewal, or the postman's pause."""


class Trouble(NamedTuple):
    """How the store is broken and mended, what a joiner says of it, and how long a call then takes to fail."""

    begin: Callable[[Store], object]
    end: Callable[[Store], object]
    reason: str
    call: float = 0.1


def _empty(store: Store) -> None:
    store.kill()
    store.start()


TROUBLES = {
    "killed": Trouble(Store.kill, Store.start, "cannot be reached"),
    "restarted empty": Trouble(_empty, lambda store: None, ""),
    "stopped": Trouble(Store.stop, Store.resume, "answer", CALL),
    "out of memory": Trouble(
        lambda store: store.ask("CONFIG", "SET", "maxmemory", "1"),
        lambda store: store.ask("CONFIG", "SET", "maxmemory", "0"),
        "is out of memory",
    ),
    "read-only": Trouble(
        lambda store: store.ask("REPLICAOF", "127.0.0.1", "1"),
        lambda store: store.ask("REPLICAOF", "NO", "ONE"),
        "is a read-only replica",
    ),
}


def troubles(where: str, outcome: str, seconds: Callable[[Trouble], float], *left_out: str) -> pytest.MarkDecorator:
    """A case for each trouble."""
    return pytest.mark.parametrize(
        "trouble",
        [
            pytest.param(trouble, id=name, marks=fault("store", where, outcome, seconds(trouble)))
            for name, trouble in TROUBLES.items()
            if name not in left_out
        ],
    )


async def all_lend_again(workers: Fleet, *serving: Worker) -> None:
    """All are advertised within seconds, and a newcomer gets an answer from each."""
    with anyio.fail_after(RENEWAL * 1.5 + 4.0):
        await workers.advertised(*(worker.name for worker in serving))
    await nobody_is_deaf(workers, *serving)


async def nobody_is_deaf(workers: Fleet, *serving: Worker, url: str = "") -> None:
    """Newcomers pull from each of ``serving``, which then leaves; one that is capped may be helped, and outrun."""
    left = {worker.name: worker for worker in serving}
    while left:
        newcomer = await workers.start(f"newcomer{len(left)}", url=url)
        with anyio.fail_after(PATIENCE):
            report = await newcomer.serving()
        troubled = [reason for reason in report.detours if not reason.endswith((OUTRUN, NARROW))]
        assert (report.path, troubled) == ("peer", []), "a source does not answer"
        await workers.check(newcomer)
        await newcomer.leave()
        await left.pop(report.sources[0]).leave()


@pytest.mark.parametrize("kind", ["valkey", "redis"])
@troubles("before the start", "storage; it lends when it is back", lambda it: 2 * it.call, "restarted empty")
async def test_store_before_the_start(trouble: Trouble, workers: Fleet, case: Case) -> None:
    trouble.begin(workers.store)
    joiner = await workers.start("joiner")
    await joiner.begun()
    with case.clock():
        report = await joiner.serving()
    assert (report.path, report.against) == ("storage", "own storage read")
    assert trouble.reason in report.detours[0]
    await workers.check(joiner)
    trouble.end(workers.store)
    await all_lend_again(workers, joiner)


@fault("store killed", "DISCOVER", "storage; the reason", 0.1)
async def test_store_that_dies_under_a_claim(workers: Fleet, case: Case) -> None:
    source = await workers.serving("source")
    workers.store.stop()
    joiner = await workers.start("joiner")
    await joiner.begun()
    workers.store.kill()
    with case.clock():
        report = await joiner.serving()
    assert report.path == "storage"
    assert "cannot be reached" in report.detours[0]
    await workers.check(joiner)
    workers.store.start()
    await all_lend_again(workers, source, joiner)


@troubles("HANDSHAKE", "storage; the reason; both lend when it is back", lambda it: ANSWER + it.call)
async def test_store_in_a_handshake(trouble: Trouble, workers: Fleet, case: Case) -> None:
    source = await workers.serving("source")
    source.stop()
    joiner = await workers.start("joiner")
    await joiner.reached("HANDSHAKE")
    trouble.begin(workers.store)
    source.resume()
    with case.clock():
        report = await joiner.serving()
    if trouble.reason or report.detours:
        assert (report.path, report.bytes_peer) == ("storage", 0)
        assert report.detours[0].startswith("source: ")
        assert trouble.reason in report.detours[-1]
    else:  # the letter had left the store before its end
        assert report.path == "peer"
    await workers.check(joiner)
    trouble.end(workers.store)
    await all_lend_again(workers, source, joiner)


@troubles("TRANSFER", "no effect; both lend when it is back", lambda it: TRANSFER + 2 * it.call)
async def test_store_in_a_transfer(trouble: Trouble, workers: Fleet, case: Case) -> None:
    source = await workers.serving("source", lend_gbps=SLOW)
    joiner = await workers.start("joiner")
    await joiner.reached("TRANSFER", nbytes=1)
    trouble.begin(workers.store)
    with case.clock():
        report = await joiner.serving()
    assert (report.path, report.sources, report.detours) == ("peer", ("source",), ())
    await workers.check(joiner)
    trouble.end(workers.store)
    await all_lend_again(workers, source, joiner)


@troubles("VERIFY", "no effect; both lend when it is back", lambda it: 0.1)
async def test_store_in_the_check(trouble: Trouble, workers: Fleet, case: Case) -> None:
    source = await workers.serving("source")
    joiner = await workers.start("joiner", gated=True)
    await joiner.reached("VERIFY")
    await workers.lends_nothing(source)
    trouble.begin(workers.store)
    workers.open_gate()
    with case.clock():
        report = await joiner.serving()
    assert (report.path, report.sources, report.detours) == ("peer", ("source",), ())
    await workers.check(joiner)
    trouble.end(workers.store)
    await all_lend_again(workers, source, joiner)


@troubles("FALLBACK", "own storage; it lends when it is back", lambda it: 0.1 + it.call, "restarted empty")
async def test_store_while_storage_is_read(trouble: Trouble, workers: Fleet, case: Case) -> None:
    loader = await workers.start("loader", disk="hold:1")
    await workers.stuck("loader")
    trouble.begin(workers.store)
    workers.open_gate()
    with case.clock():
        report = await loader.serving()
    assert (report.path, report.against) == ("storage", "own storage read")
    assert trouble.reason in report.detours[-1]
    await workers.check(loader)
    trouble.end(workers.store)
    await all_lend_again(workers, loader)


@pytest.mark.parametrize("kind", ["valkey", "redis"])
@fault("store restarted empty", "SERVE", "all advertised anew, nobody is deaf", RENEWAL)
async def test_store_that_forgets(workers: Fleet, case: Case) -> None:
    serving = [await workers.serving(name) for name in ("one", "two", "three")]
    workers.store.kill()
    workers.store.start()
    with case.clock():
        await workers.advertised("one", "two", "three")
    await nobody_is_deaf(workers, *serving)


@troubles("SERVE, and the worker is told to end", "exit code 0", lambda it: 3 * it.call, "restarted empty")
async def test_store_when_a_worker_leaves(trouble: Trouble, workers: Fleet, case: Case) -> None:
    source = await workers.serving("source")
    trouble.begin(workers.store)
    with case.clock():
        await source.leave()


@fault("failover, and the last writes are lost", "TRANSFER", "no effect; all advertised anew, nobody is deaf", TRANSFER)
async def test_failover_with_lost_writes(workers: Fleet, case: Case) -> None:
    primary, replica = workers.store, Store(workers.place / "replica")
    now = [primary]
    proxy = await workers.proxy(lambda: now[0].socket)
    try:
        replica.ask("REPLICAOF", "127.0.0.1", primary.port)
        one = await workers.serving("one", url=proxy.url, lend_gbps=SLOW)
        with anyio.fail_after(PATIENCE):
            await workers.advertised("one", store=replica)
        replica.stop()
        joiner = await workers.start("joiner", url=proxy.url)
        await joiner.reached("TRANSFER", nbytes=1)
        primary.kill()
        replica.resume()
        replica.ask("REPLICAOF", "NO", "ONE")
        now[0] = replica
        with case.clock():
            await workers.advertised("one", store=replica)
            report = await joiner.serving()
            await workers.advertised("one", "joiner", store=replica)
        assert (report.path, report.sources, report.detours) == ("peer", ("one",), ())
        await workers.check(one, joiner)
        await nobody_is_deaf(workers, one, joiner, url=proxy.url)
    finally:
        replica.kill()


@fault("store slow, 500 ms per answer", "always", "all from a peer", 5.0)
async def test_slow_store(workers: Fleet, case: Case) -> None:
    source = await workers.serving("source")
    proxy = await workers.proxy()
    proxy.down.delay = 0.5
    joiner = await workers.start("joiner", url=proxy.url)
    await joiner.begun()
    with case.clock():
        report = await joiner.serving()
    assert (report.path, report.sources, report.detours) == ("peer", ("source",), ())
    await workers.check(joiner)
    await joiner.leave()
    await workers.check_lends(source)
