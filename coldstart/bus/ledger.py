"""The store's whole state and its rules, without waiting: every operation is a plain call.

Decides what a store decides, by the rules of ``scripts/`` in Python; ``testing/bus_contract/``
holds both to the same answers. It knows no event loop, and no clock but the ``now`` that it is given.
Names and sizes are checked by whoever takes them from others: ``memory.py``, which makes a bus of it.
A simulation drives it directly. What is kept of a shard is in ``shard.py``; who gets a slot, in ``turn.py``.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import islice

import msgspec

from coldstart.bus.ballots import Ballots
from coldstart.bus.leases import Leases
from coldstart.bus.limits import (
    INBOX_LETTERS,
    INBOX_SECONDS,
    KEEP_SECONDS,
    MAX_CONFLICTING_ROOTS,
    MAX_READERS,
    NONCE_SECONDS,
    SHARD_SECONDS,
    queue_seconds,
)
from coldstart.bus.shard import Shard
from coldstart.bus.turn import Turn
from coldstart.group import Paper, Tally
from coldstart.ports import (
    Admission,
    Advert,
    Claim,
    ClaimOutcome,
    Conflicted,
    Cursor,
    Deferred,
    Elected,
    Heard,
    Letter,
    Queue,
    Recorded,
    Standing,
    Stated,
)


class Ledger:
    """What a fleet shares. Its operations mean what those of :class:`coldstart.ports.Bus` mean, and raise nothing.

    Two hooks tell its owner whom to wake, within the call that caused it; they are set by assignment
    and must not call the ledger back. :meth:`wipe` calls neither: whoever wipes knows.

    Args:
        now: the clock of leases, in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.on_letter: Callable[[str, str], object] = lambda shard, inbox: None
        """Called with shard and inbox when a letter was put there."""
        self.on_change: Callable[[str], object] = lambda shard: None
        """Called with the shard when its fleet changed."""
        self._now = now
        self._life = 0
        self.wipe()

    def wipe(self) -> None:
        """Forget everything and begin another epoch."""
        self._life += 1
        self.epoch = f"memory-{self._life}"
        self._last = 0  # a store without memory hands out low ids again
        self._seen: Leases[bool] = Leases()
        self._journals: Leases[bool] = Leases()
        self._shards: defaultdict[str, Shard] = defaultdict(Shard)
        self._ballots = Ballots()

    # ------------------------------------------------------------------------ sources and slots

    def claim(self, claim: Claim) -> ClaimOutcome:
        now = self._now()
        shard = self._shards[claim.shard]
        # A conflict outweighs even an answer already given: nobody is believed.
        if roots := shard.conflicts.get(claim.layout):
            shard.lines.leave(claim.transfer)
            return Conflicted(tuple(roots), self.epoch)
        if before := shard.answers.get(claim.transfer, now):
            return before
        turn = self._turn(claim.shard, shard, now)
        outcome = turn.seek(claim) or self._elect(shard, claim, turn, now)
        if isinstance(outcome, Deferred) and (seconds := queue_seconds(claim)) > 0:
            shard.lines.stand(claim, now, seconds)
            return self._queued(outcome, shard, claim, turn, now)
        shard.lines.leave(claim.transfer)
        return outcome

    def _queued(self, outcome: Deferred, shard: Shard, claim: Claim, turn: Turn, now: float) -> Deferred:
        """The answer with what is known of the line, where there are complete sources to stand in line for."""
        sources = turn.sources
        if sources is None or (ahead := shard.lines.count_ahead(claim)) is None:
            return outcome
        readers = self._readers(shard, claim.layout, claim.worker, now)
        queue = Queue(ahead, sources.slots, sources.used, sources.rate, readers, sources.hosts)
        return msgspec.structs.replace(outcome, queue=queue)

    def _elect(self, shard: Shard, claim: Claim, turn: Turn, now: float) -> Elected | Deferred:
        """The lead for a claim that has found no source, if none will have room and nobody else leads."""
        root, skipped = shard.root(claim.layout), turn.skipped
        if turn.busy:
            return Deferred("", root, self.epoch, skipped)
        leader = shard.leaders.get(claim.layout, now)
        # To a joiner, an excluded leader does not exist: it takes the lease over.
        if leader and leader != claim.worker and leader not in claim.exclude:
            return Deferred(leader, root, self.epoch, skipped)
        # A source whose first chunk of our part is still to come makes nobody lead, but does not hide who does.
        if turn.lacking or claim.lead_seconds <= 0 or claim.part >= 0:
            return Deferred("", root, self.epoch, skipped)
        shard.leaders.put(claim.layout, claim.worker, now, claim.lead_seconds)
        elected = Elected(root, self.epoch, skipped)
        shard.answers.put(claim.transfer, elected, now, claim.lead_seconds)
        return elected

    def release(self, shard: str, source: str, transfer: str, letter: bytes = b"") -> Advert | None:
        now = self._now()
        found = self._shards[shard]
        found.lines.leave(transfer)
        lent, inbox = found.lent.get(transfer, now), ""
        if lent is not None and source in ("", lent[0]):
            source, inbox = lent
            found.lent.drop(transfer)
        elif (standing := found.roster.find(source, now)) is not None:
            inbox = standing.told.inbox
        if letter and inbox:
            self._deliver(shard, found, inbox, Letter(letter), now)
        freed = found.roster.release(source, transfer, now)
        if freed:
            self._changed(shard, found)
        standing = found.roster.find(source, now)
        if standing is None:
            return None
        if freed and found.lines:
            self._turn(shard, found, now).serve(standing)
        return standing.told

    def advertise(
        self, shard: str, advert: Advert, seconds: float, held: Sequence[str] = (), ended: Sequence[str] = ()
    ) -> Standing:
        now = self._now()
        if advert.used or advert.struck or advert.unproven:
            advert = msgspec.structs.replace(advert, used=0, struck=False, unproven="")
        self._seen.put(shard, True, now, SHARD_SECONDS)
        found = self._shards[shard]
        if found.roster.advertise(advert, now, seconds, held, ended):
            self._changed(shard, found)
        answer = Standing(self.epoch, found.root(advert.layout), found.roster.struck(advert.worker))
        if found.lines and (standing := found.roster.find(advert.worker, now)) is not None:
            self._turn(shard, found, now).serve(standing)
        return answer

    def withdraw(self, shard: str, worker: str, incarnation: str) -> None:
        found = self._shards[shard]
        if found.roster.withdraw(worker, incarnation, self._now()):
            self._changed(shard, found)

    def strike(self, shard: str, worker: str, incarnation: str, proof: int, letter: bytes) -> None:
        now = self._now()
        found = self._shards[shard]
        struck = found.roster.strike(worker, incarnation, proof, now)
        if struck is not None:
            self._deliver(shard, found, struck.inbox, Letter(letter), now)
            self._changed(shard, found)

    def advert(self, shard: str, worker: str) -> Advert | None:
        standing = self._shards[shard].roster.find(worker, self._now())
        return None if standing is None else standing.told

    def adverts(self, shard: str) -> tuple[Advert, ...]:
        return self._shards[shard].roster.adverts(self._now())

    def shards(self) -> tuple[str, ...]:
        return tuple(self._seen.live(self._now()))

    # ------------------------------------------------------------------------- leading and truth

    def lead(self, shard: str, layout: str, worker: str, seconds: float) -> bool:
        now = self._now()
        found = self._shards[shard]
        leaders = found.leaders
        leader = leaders.get(layout, now)
        if leader and leader != worker:
            return False
        if seconds > 0:
            leaders.put(layout, worker, now, seconds)
        elif leader:
            leaders.drop(layout)
            self._changed(shard, found)
        return True

    def admit(self, shard: str, layout: str, worker: str, most: int, seconds: float) -> Admission:
        now = self._now()
        found = self._shards[shard]
        others = self._readers(found, layout, worker, now)
        if seconds > 0 and others < min(most, MAX_READERS):
            found.readers[layout].put(worker, True, now, seconds)
            return Admission(True, others)
        found.readers[layout].drop(worker)
        return Admission(False, others)

    def _readers(self, shard: Shard, layout: str, worker: str, now: float) -> int:
        """How many others read storage: whoever leads, and those that were admitted."""
        names = {*shard.readers[layout].live(now), shard.leaders.get(layout, now) or worker}
        return len(names - {worker})

    def publish_truth(
        self, shard: str, layout: str, root: str, truth: bytes, *, again: bool = False
    ) -> tuple[str, ...]:
        found = self._shards[shard]
        if layout not in found.truths:
            found.truths[layout] = (root, truth)
            found.stated.pop(layout, None)
            self._changed(shard, found)
        elif again and found.truths[layout][0] == root:
            found.truths[layout] = (root, truth)
        known, conflict = found.truths[layout][0], found.conflicts.get(layout, [])
        if known != root and root not in conflict and len(conflict) < MAX_CONFLICTING_ROOTS:
            found.conflicts[layout] = conflict = sorted([*(conflict or [known]), root])
            self._changed(shard, found)
        return tuple(conflict) or (root,)

    def fetch_truth(self, shard: str, layout: str) -> bytes | None:
        """The published truth; None before there is one, and in a conflict, where none is believed."""
        found = self._shards[shard]
        if layout in found.conflicts or layout not in found.truths:
            return None
        return found.truths[layout][1]

    def state(self, shard: str, layout: str, digests: Mapping[int, bytes]) -> bool:
        found = self._shards[shard]
        if layout in found.truths:
            return True
        stated = found.stated.get(layout, {})
        if any(stated.get(chunk, digest) != digest for chunk, digest in digests.items()):
            return False
        found.stated[layout] = {**stated, **digests}
        return True

    def stated(self, shard: str, layout: str, first: int = 0) -> Stated:
        found = self._shards[shard]
        if layout in found.conflicts:
            return Stated()
        if layout in found.truths:
            return Stated(found.root(layout))
        stated = found.stated.get(layout, {})
        return Stated("", {chunk: stated[chunk] for chunk in sorted(stated) if chunk >= first})

    # ----------------------------------------------------------------------------------- letters

    def send(self, shard: str, inbox: str, body: bytes, nonce: str) -> None:
        now = self._now()
        found, once = self._shards[shard], f"{inbox}/{nonce}"
        if not found.nonces.get(once, now):
            found.nonces.put(once, True, now, NONCE_SECONDS)
            self._deliver(shard, found, inbox, Letter(body), now)

    def heard(self, shard: str, inbox: str, cursor: Cursor, *, fleet: bool = True) -> Heard:
        """What came after ``cursor``, without waiting."""
        if cursor.epoch not in ("", self.epoch):
            return Heard(Cursor(epoch=self.epoch), renewed=True)
        after, seen = _number(cursor.inbox), _number(cursor.fleet)
        if after > self._last or seen > self._last:  # of a time that this store has forgotten
            return Heard(Cursor(f"{self._last}-0", f"{self._last}-0", self.epoch), renewed=True)
        found = self._shards[shard]
        letters: list[Letter] = []
        newest, latest = cursor.inbox, cursor.fleet
        inbound = found.inboxes.renew(inbox, self._now(), INBOX_SECONDS)
        if inbound and inbound[-1][0] > after:
            newest = f"{inbound[-1][0]}-0"
            for number, letter in reversed(inbound):
                if number <= after:
                    break
                letters.append(letter)
            letters.reverse()
        changed = fleet and found.changes > seen
        if changed:
            latest = f"{found.changes}-0"
        return Heard(Cursor(newest, latest, self.epoch), tuple(letters), changed)

    def record(self, shard: str, entries: Sequence[bytes]) -> None:
        now = self._now()
        self._journals.put(shard, True, now, KEEP_SECONDS)
        for entry in entries:
            self._last += 1
            self._shards[shard].journal.append(Recorded(f"{self._last}-0", now, entry))

    def recorded(self, shard: str, after: str, most: int) -> tuple[Recorded, ...]:
        place = _number(after)
        return tuple(islice((each for each in self._shards[shard].journal if _number(each.id) > place), most))

    def journals(self) -> tuple[str, ...]:
        return tuple(sorted(self._journals.live(self._now())))

    def journal(self, shard: str) -> tuple[bytes, ...]:
        """The journal entries of a shard, oldest first."""
        return tuple(each.body for each in self._shards[shard].journal)

    # ------------------------------------------------------------------------------------ groups

    def vote(self, group: str, paper: Paper) -> Tally:
        return self._ballots.vote(group, paper, self._now())

    # ------------------------------------------------------------------------------------- inside

    def shard(self, key: str) -> Shard:
        """All that is kept of one shard; a test may spoil it."""
        return self._shards[key]

    def _turn(self, name: str, shard: Shard, now: float) -> Turn:
        return Turn(shard, self.epoch, now, lambda inbox, letter: self._deliver(name, shard, inbox, letter, now))

    def _changed(self, name: str, shard: Shard) -> None:
        self._last += 1
        shard.changes = self._last
        self.on_change(name)

    def _deliver(self, name: str, shard: Shard, inbox: str, letter: Letter, now: float) -> None:
        inbound = shard.inboxes.renew(inbox, now, INBOX_SECONDS)
        if inbound is None:
            inbound = deque(maxlen=INBOX_LETTERS)
            shard.inboxes.put(inbox, inbound, now, INBOX_SECONDS)
        self._last += 1
        inbound.append((self._last, letter))
        self.on_letter(name, inbox)


@lru_cache(maxsize=1024)
def _number(identifier: str) -> int:
    """Kept, because listeners come back with the id that they were given."""
    return int(identifier.partition("-")[0])
