"""The bus inside one process: a fleet of workers in a test, a demo, or a simulation.

Decides what a store decides, by the rules of ``scripts.py`` in Python; ``testing/bus_contract.py``
holds both to the same answers. It must know neither sockets nor wall clocks: waiting is anyio's and
the time of leases is the ``now`` that it is given, so that it runs under virtual time.

A :class:`MemoryStore` is the server, each :class:`MemoryBus` one worker's connection to it. The store
can be stopped and can lose its memory, which is what workers must survive.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import anyio
import anyio.lowlevel
import msgspec

from coldstart.bus.limits import (
    INBOX_LETTERS,
    JOURNAL_ENTRIES,
    MAX_CONFLICTING_ROOTS,
    MAX_SKIPS,
    NONCE_SECONDS,
    SCAN,
    SHARD_SECONDS,
    check_ids,
    check_letter,
    check_truth,
)
from coldstart.errors import BusError
from coldstart.ports import (
    Advert,
    Claim,
    ClaimOutcome,
    Conflicted,
    Cursor,
    Deferred,
    Elected,
    Granted,
    Heard,
    Letter,
    Skip,
)

_ValueT = TypeVar("_ValueT")


class _Leases(Generic[_ValueT]):
    """Values by name, each until a moment of its own."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._held: dict[str, tuple[_ValueT, float]] = {}
        self._full = 64

    def put(self, name: str, value: _ValueT, seconds: float) -> None:
        now = self._now()
        if len(self._held) >= self._full:
            self._held = {key: held for key, held in self._held.items() if held[1] > now}
            self._full = max(2 * len(self._held), 64)
        self._held[name] = (value, now + seconds)

    def extend(self, name: str, seconds: float) -> None:
        """What is held lives at least so long from now; what is not is left alone."""
        value, until = self._held.get(name, (None, 0.0))
        if value is not None and self._now() < until < self._now() + seconds:
            self._held[name] = (value, self._now() + seconds)

    def get(self, name: str) -> _ValueT | None:
        value, until = self._held.get(name, (None, 0.0))
        return value if until > self._now() else None

    def drop(self, name: str) -> bool:
        return self._held.pop(name, None) is not None

    def live(self) -> Iterator[tuple[str, _ValueT]]:
        """Names and values in the order of the names."""
        now = self._now()
        return ((name, value) for name, (value, until) in sorted(self._held.items()) if until > now)

    def count(self) -> int:
        return sum(1 for _ in self.live())


class _Shard:
    """What the store knows of one shard."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.adverts: _Leases[Advert] = _Leases(now)
        self.incarnations: dict[str, str] = {}
        self.slots: defaultdict[str, _Leases[str]] = defaultdict(lambda: _Leases(now))
        self.leaders: _Leases[str] = _Leases(now)
        self.answers: _Leases[Granted | Elected] = _Leases(now)
        self.nonces: _Leases[bool] = _Leases(now)
        self.truths: dict[str, tuple[str, bytes]] = {}
        self.conflicts: defaultdict[str, set[str]] = defaultdict(set)
        self.inboxes: defaultdict[str, deque[tuple[int, Letter]]] = defaultdict(lambda: deque(maxlen=INBOX_LETTERS))
        self.journal: deque[bytes] = deque(maxlen=JOURNAL_ENTRIES)
        self.fence = 0
        self.changes = 0


class MemoryStore:
    """The server: what all buses of one fleet share.

    Args:
        now: the clock of leases, in seconds.
    """

    def __init__(self, now: Callable[[], float] = anyio.current_time) -> None:
        self.now = now
        self._running = True
        self._waiting: list[anyio.Event] = []
        self._begin(life=1)

    def stop(self) -> None:
        """From now on every call fails, as with a server that is down; listeners fail at once."""
        self._running = False
        self.wake()

    def start(self, *, empty: bool = False) -> None:
        """Be up again, with the old memory or, as after a restart without persistence, with none."""
        if empty:
            self._begin(self._life + 1)
        self._running = True
        self.wake()

    def journal(self, shard: str) -> Sequence[bytes]:
        """The journal entries of a shard, oldest first."""
        return tuple(self.shard(shard).journal)

    # ------------------------------------------------------------------------------- for the bus

    def _begin(self, life: int) -> None:
        self._life = life
        self.epoch = f"memory-{life}"
        self.ids = itertools.count(1)  # a store without memory hands out low ids again
        self.seen: _Leases[None] = _Leases(self.now)
        self._shards: dict[str, _Shard] = {}

    def shard(self, key: str) -> _Shard:
        if key not in self._shards:
            self._shards[key] = _Shard(self.now)
        return self._shards[key]

    def check(self, operation: str) -> None:
        if not self._running:
            raise BusError(f"{operation}: the store in memory is stopped", advice="start it again")

    def changed(self, shard: _Shard) -> None:
        shard.changes = next(self.ids)
        self.wake()

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
        self._local_address = local_address
        self._closed = False
        self._listening = False

    @property
    def local_address(self) -> str:
        return self._local_address

    async def claim(self, claim: Claim) -> ClaimOutcome:
        check_ids(shard=claim.shard, layout=claim.layout, worker=claim.worker, transfer=claim.transfer)
        check_letter(claim.hello, "hello")
        shard = await self._shard("claim", claim.shard)
        epoch = self._store.epoch
        # A conflict outweighs even an answer already given: nobody is believed.
        if roots := shard.conflicts.get(claim.layout):
            return Conflicted(tuple(sorted(roots)), epoch)
        if before := shard.answers.get(claim.transfer):
            return before
        best, skipped = _survey(shard, claim)
        root = shard.truths.get(claim.layout, ("", b""))[0]
        passed = tuple(skipped[:MAX_SKIPS])
        if best:
            answer = self._grant(shard, claim, best[claim.luck % len(best)], root, passed)
            shard.answers.put(claim.transfer, answer, claim.slot_seconds)
            return answer
        if any(skip.reason == "busy" for skip in skipped):
            return Deferred("", root, epoch, passed)
        leader = shard.leaders.get(claim.layout)
        # To a joiner, an excluded leader does not exist: it takes the lease over.
        if leader and leader != claim.worker and leader not in claim.exclude:
            return Deferred(leader, root, epoch, passed)
        if claim.lead_seconds <= 0:
            return Deferred("", root, epoch, passed)
        shard.leaders.put(claim.layout, claim.worker, claim.lead_seconds)
        elected = Elected(root, epoch, passed)
        shard.answers.put(claim.transfer, elected, claim.lead_seconds)
        return elected

    def _grant(self, shard: _Shard, claim: Claim, source: Advert, root: str, skipped: tuple[Skip, ...]) -> Granted:
        shard.fence += 1
        shard.slots[source.worker].put(claim.transfer, claim.worker, claim.slot_seconds)
        self._deliver(shard, source.inbox, Letter(claim.hello, shard.fence))
        lent = _with_use(shard, source)
        return Granted(source=lent, fence=shard.fence, root=root, epoch=self._store.epoch, skipped=skipped)

    async def release(self, shard: str, source: str, transfer: str) -> Advert | None:
        check_ids(shard=shard, source=source, transfer=transfer)
        found = await self._shard("release", shard)
        if found.slots[source].drop(transfer):
            self._store.changed(found)
        advert = found.adverts.get(source)
        return _with_use(found, advert) if advert else None

    async def lead(self, shard: str, layout: str, worker: str, seconds: float) -> bool:
        check_ids(shard=shard, layout=layout, worker=worker)
        found = await self._shard("lead", shard)
        leader = found.leaders.get(layout)
        if leader and leader != worker:
            return False
        if seconds > 0:
            found.leaders.put(layout, worker, seconds)
        elif leader:
            found.leaders.drop(layout)
            self._store.changed(found)
        return True

    async def advertise(self, shard: str, advert: Advert, seconds: float, held: Sequence[str] = ()) -> str:
        check_ids(shard=shard, layout=advert.layout, worker=advert.worker, inbox=advert.inbox)
        for transfer in held:
            check_ids(transfer=transfer)
        found = await self._shard("advertise", shard)
        advert = msgspec.structs.replace(advert, used=0)
        before = found.adverts.get(advert.worker)
        found.adverts.put(advert.worker, advert, seconds)
        # A new incarnation has lent nothing yet.
        if found.incarnations.get(advert.worker, advert.incarnation) != advert.incarnation:
            found.slots.pop(advert.worker, None)
        found.incarnations[advert.worker] = advert.incarnation
        for transfer in held:
            found.slots[advert.worker].extend(transfer, seconds)
        if before != advert:
            self._store.changed(found)
        self._store.seen.put(shard, None, SHARD_SECONDS)
        return self._store.epoch

    async def withdraw(self, shard: str, worker: str, incarnation: str) -> None:
        check_ids(shard=shard, worker=worker, incarnation=incarnation)
        found = await self._shard("withdraw", shard)
        known = found.adverts.get(worker)
        if known is not None and known.incarnation != incarnation:
            return
        if found.adverts.drop(worker):
            found.incarnations.pop(worker, None)
            self._store.changed(found)

    async def publish_truth(self, shard: str, layout: str, root: str, truth: bytes) -> tuple[str, ...]:
        check_ids(shard=shard, layout=layout, root=root)
        check_truth(truth)
        found = await self._shard("publish_truth", shard)
        if layout not in found.truths:
            found.truths[layout] = (root, truth)
            self._store.changed(found)
        known, conflict = found.truths[layout][0], found.conflicts[layout]
        if known != root and root not in conflict and len(conflict) < MAX_CONFLICTING_ROOTS:
            conflict |= {known, root}
            self._store.changed(found)
        return tuple(sorted(conflict)) or (root,)

    async def fetch_truth(self, shard: str, layout: str) -> bytes | None:
        """The published truth; None before there is one, and in a conflict, where none is believed."""
        check_ids(shard=shard, layout=layout)
        found = await self._shard("fetch_truth", shard)
        if found.conflicts.get(layout) or layout not in found.truths:
            return None
        return found.truths[layout][1]

    async def send(self, shard: str, inbox: str, body: bytes, nonce: str) -> None:
        check_ids(shard=shard, inbox=inbox, nonce=nonce)
        check_letter(body, "letter")
        found = await self._shard("send", shard)
        once = f"{inbox}/{nonce}"
        if not found.nonces.get(once):
            found.nonces.put(once, True, NONCE_SECONDS)
            self._deliver(found, inbox, Letter(body))

    def _deliver(self, shard: _Shard, inbox: str, letter: Letter) -> None:
        shard.inboxes[inbox].append((next(self._store.ids), letter))
        self._store.wake()

    async def listen(self, shard: str, inbox: str, cursor: Cursor, seconds: float) -> Heard:
        check_ids(shard=shard, inbox=inbox)
        if self._listening:
            raise BusError("two listeners on one bus object", advice="open a bus per listener")
        self._listening = True
        try:
            await self._shard("listen", shard)
            with anyio.move_on_after(seconds):
                while True:
                    heard = self._heard(shard, inbox, cursor)
                    if heard.letters or heard.fleet_changed or heard.renewed:
                        return heard
                    await self._store.wait()
                    self._check("listen")
            return self._heard(shard, inbox, cursor)
        finally:
            self._listening = False

    def _heard(self, shard: str, inbox: str, cursor: Cursor) -> Heard:
        epoch = self._store.epoch
        if cursor.epoch not in ("", epoch):
            return Heard(Cursor(epoch=epoch), renewed=True)
        found = self._store.shard(shard)
        after = _number(cursor.inbox)
        fresh = [(number, letter) for number, letter in found.inboxes[inbox] if number > after]
        changed = found.changes > _number(cursor.fleet)
        cursor = Cursor(
            inbox=f"{fresh[-1][0]}-0" if fresh else cursor.inbox,
            fleet=f"{found.changes}-0" if changed else cursor.fleet,
            epoch=epoch,
        )
        return Heard(cursor, letters=tuple(letter for _, letter in fresh), fleet_changed=changed)

    async def record(self, shard: str, entry: bytes) -> None:
        check_ids(shard=shard)
        check_letter(entry, "journal entry")
        (await self._shard("record", shard)).journal.append(entry)

    async def shards(self) -> Sequence[str]:
        await self._call("shards")
        return tuple(key for key, _ in self._store.seen.live())

    async def adverts(self, shard: str) -> Sequence[Advert]:
        check_ids(shard=shard)
        found = await self._shard("adverts", shard)
        return tuple(_with_use(found, advert) for _, advert in found.adverts.live())

    async def aclose(self) -> None:
        self._closed = True
        self._store.wake()

    async def _shard(self, operation: str, key: str) -> _Shard:
        await self._call(operation)
        return self._store.shard(key)

    async def _call(self, operation: str) -> None:
        await anyio.lowlevel.checkpoint()
        self._check(operation)

    def _check(self, operation: str) -> None:
        if self._closed:
            raise BusError(f"{operation} on a bus that was closed")
        self._store.check(operation)


def _survey(shard: _Shard, claim: Claim) -> tuple[list[Advert], list[Skip]]:
    """The equally good best sources, and why the others are none."""
    adverts = [advert for _, advert in shard.adverts.live()]
    start = claim.luck % len(adverts) if len(adverts) > SCAN else 0
    best: list[Advert] = []
    best_rank = (0.0, 0, 0)
    skipped: list[Skip] = []
    for step, advert in enumerate(adverts[start:] + adverts[:start]):
        if step >= SCAN and best:
            break
        used = shard.slots[advert.worker].count()
        if reason := _unusable(advert, used, claim):
            skipped.append(Skip(advert.worker, reason, advert.layout))
            continue
        # Less loaded first, then more free slots, then more chunks.
        rank = (-used / advert.slots, advert.slots - used, advert.have)
        if not best or rank > best_rank:
            best, best_rank = [advert], rank
        elif rank == best_rank:
            best.append(advert)
    return best, skipped


def _unusable(advert: Advert, used: int, claim: Claim) -> str:
    if advert.worker == claim.worker or advert.worker in claim.exclude:
        return "excluded"
    if advert.layout != claim.layout:
        return "layout"
    if claim.transports and not set(claim.transports) & set(advert.transports):
        return "transports"
    if advert.have <= 0:
        return "empty"
    if used >= advert.slots:
        return "busy"
    return ""


def _with_use(shard: _Shard, advert: Advert) -> Advert:
    return msgspec.structs.replace(advert, used=shard.slots[advert.worker].count())


def _number(identifier: str) -> int:
    return int(identifier.partition("-")[0])
