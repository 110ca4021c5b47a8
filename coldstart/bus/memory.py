"""The bus inside one process: a fleet of workers in a test, a demo, or a simulation.

Decides how workers wait for a store, and how a store fails: what its answers are is decided by
``ledger.py``. It must know neither sockets nor wall clocks: waiting is anyio's and the time of leases
is the ``now`` that it is given, so that it runs under virtual time.

A :class:`MemoryStore` is the server, each :class:`MemoryBus` one worker's connection to it. The store
can be stopped and can lose its memory, which is what workers must survive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import anyio
import anyio.lowlevel

from coldstart.bus.ledger import Ledger
from coldstart.bus.limits import (
    check_advert,
    check_claim,
    check_digests,
    check_ids,
    check_letter,
    check_paper,
    check_place,
    check_truth,
)
from coldstart.bus.shard import Shard
from coldstart.errors import BusError
from coldstart.group import Paper, Tally
from coldstart.ports import Admission, Advert, Claim, ClaimOutcome, Cursor, Heard, Recorded, Standing, Stated


class MemoryStore:
    """The server: what all buses of one fleet share.

    Args:
        now: the clock of leases, in seconds.
    """

    def __init__(self, now: Callable[[], float] = anyio.current_time) -> None:
        self.ledger, self.now = Ledger(now), now
        self.ledger.on_letter = lambda shard, inbox: self.wake()
        self.ledger.on_change = lambda shard: self.wake()
        self._running = True
        self._waiting: list[anyio.Event] = []

    def stop(self) -> None:
        """From now on every call fails, as with a server that is down; listeners fail at once."""
        self._running = False
        self.wake()

    def start(self, *, empty: bool = False) -> None:
        """Be up again, with the old memory or, as after a restart without persistence, with none."""
        if empty:
            self.ledger.wipe()
        self._running = True
        self.wake()

    def journal(self, shard: str) -> Sequence[bytes]:
        """The journal entries of a shard, oldest first."""
        return self.ledger.journal(shard)

    def shard(self, key: str) -> Shard:
        """All that is kept of one shard; a test may spoil it."""
        return self.ledger.shard(key)

    # ------------------------------------------------------------------------------- for the bus

    def check(self, operation: str) -> None:
        if not self._running:
            raise BusError(f"{operation}: the store in memory is stopped", advice="start it again")

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            event.set()

    async def wait(self) -> None:
        """Until anything happens; the caller looks for itself what it was."""
        event = anyio.Event()
        self._waiting.append(event)
        try:
            await event.wait()
        finally:
            if event in self._waiting:
                self._waiting.remove(event)


class MemoryBus:
    """One worker's connection to a :class:`MemoryStore`."""

    def __init__(self, store: MemoryStore, local_address: str = "127.0.0.1") -> None:
        self.dropped = 0
        self._store = store
        self._ledger = store.ledger
        self._local_address = local_address
        self._closed = False
        self._listening = False

    @property
    def local_address(self) -> str:
        return self._local_address

    async def claim(self, claim: Claim) -> ClaimOutcome:
        check_claim(claim)
        await self._call("claim")
        return self._ledger.claim(claim)

    async def release(self, shard: str, source: str, transfer: str, letter: bytes = b"") -> Advert | None:
        check_ids(shard=shard, source=source or "any", transfer=transfer)
        check_letter(letter, "letter")
        await self._call("release")
        return self._ledger.release(shard, source, transfer, letter)

    async def lead(self, shard: str, layout: str, worker: str, seconds: float) -> bool:
        check_ids(shard=shard, layout=layout, worker=worker)
        await self._call("lead")
        return self._ledger.lead(shard, layout, worker, seconds)

    async def admit(self, shard: str, layout: str, worker: str, most: int, seconds: float) -> Admission:
        check_ids(shard=shard, layout=layout, worker=worker)
        await self._call("admit")
        return self._ledger.admit(shard, layout, worker, most, seconds)

    async def advertise(
        self, shard: str, advert: Advert, seconds: float, held: Sequence[str] = (), ended: Sequence[str] = ()
    ) -> Standing:
        check_advert(shard, advert)
        for transfer in (*held, *ended):
            check_ids(transfer=transfer)
        await self._call("advertise")
        return self._ledger.advertise(shard, advert, seconds, held, ended)

    async def withdraw(self, shard: str, worker: str, incarnation: str) -> None:
        check_ids(shard=shard, worker=worker, incarnation=incarnation)
        await self._call("withdraw")
        self._ledger.withdraw(shard, worker, incarnation)

    async def strike(self, shard: str, worker: str, incarnation: str, proof: int, letter: bytes) -> None:
        check_ids(shard=shard, worker=worker, incarnation=incarnation)
        check_letter(letter, "letter")
        await self._call("strike")
        self._ledger.strike(shard, worker, incarnation, proof, letter)

    async def publish_truth(
        self, shard: str, layout: str, root: str, truth: bytes, *, again: bool = False
    ) -> tuple[str, ...]:
        check_ids(shard=shard, layout=layout, root=root)
        check_truth(truth)
        await self._call("publish_truth")
        return self._ledger.publish_truth(shard, layout, root, truth, again=again)

    async def fetch_truth(self, shard: str, layout: str) -> bytes | None:
        """The published truth; None before there is one, and in a conflict, where none is believed."""
        check_ids(shard=shard, layout=layout)
        await self._call("fetch_truth")
        return self._ledger.fetch_truth(shard, layout)

    async def state(self, shard: str, layout: str, digests: Mapping[int, bytes]) -> bool:
        check_ids(shard=shard, layout=layout)
        check_digests(digests)
        await self._call("state")
        return self._ledger.state(shard, layout, digests)

    async def stated(self, shard: str, layout: str, first: int = 0) -> Stated:
        check_ids(shard=shard, layout=layout)
        await self._call("stated")
        return self._ledger.stated(shard, layout, first)

    async def send(self, shard: str, inbox: str, body: bytes, nonce: str) -> None:
        check_ids(shard=shard, inbox=inbox, nonce=nonce)
        check_letter(body, "letter")
        await self._call("send")
        self._ledger.send(shard, inbox, body, nonce)

    async def listen(
        self, shard: str, inbox: str, cursor: Cursor, seconds: float, *, fleet: bool = True
    ) -> Heard:
        check_ids(shard=shard, inbox=inbox)
        if self._listening:
            raise BusError("two listeners on one bus object", advice="open a bus per listener")
        self._listening = True
        try:
            await self._call("listen")
            with anyio.move_on_after(seconds):
                while True:
                    heard = self._ledger.heard(shard, inbox, cursor, fleet=fleet)
                    if heard.letters or heard.fleet_changed or heard.renewed:
                        return heard
                    await self._store.wait()
                    self._check("listen")
            return self._ledger.heard(shard, inbox, cursor, fleet=fleet)
        finally:
            self._listening = False

    async def record(self, shard: str, entries: Sequence[bytes]) -> None:
        check_ids(shard=shard)
        for entry in entries:
            check_letter(entry, "journal entry")
        await self._call("record")
        self._ledger.record(shard, entries)

    async def recorded(self, shard: str, after: str = "0-0", most: int = 256) -> Sequence[Recorded]:
        check_ids(shard=shard)
        check_place(after, most)
        await self._call("recorded")
        return self._ledger.recorded(shard, after, most)

    async def journals(self) -> Sequence[str]:
        await self._call("journals")
        return self._ledger.journals()

    async def vote(self, group: str, paper: Paper) -> Tally:
        check_paper(group, paper)
        await self._call("vote")
        return self._ledger.vote(group, paper)

    async def shards(self) -> Sequence[str]:
        await self._call("shards")
        return self._ledger.shards()

    async def advert(self, shard: str, worker: str) -> Advert | None:
        check_ids(shard=shard, worker=worker)
        await self._call("advert")
        return self._ledger.advert(shard, worker)

    async def adverts(self, shard: str) -> Sequence[Advert]:
        check_ids(shard=shard)
        await self._call("adverts")
        return self._ledger.adverts(shard)

    async def time(self) -> float:
        await self._call("time")
        return self._store.now()

    async def aclose(self) -> None:
        self._closed = True
        self._store.wake()

    async def _call(self, operation: str) -> None:
        await anyio.lowlevel.checkpoint()
        self._check(operation)

    def _check(self, operation: str) -> None:
        if self._closed:
            raise BusError(f"{operation} on a bus that was closed")
        self._store.check(operation)
