"""Performs what the joiner's machine asks for, in the simulation.

The counterpart of ``coldstart.joining`` and ``coldstart.claiming`` without waiting: every effect is
answered later by events. Letters are the real ones. It decides nothing about the path; bytes move
in ``movement.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from coldstart import effects, events
from coldstart.claiming import FIRST_SIGN, LEAD_SECONDS, QUEUE_SECONDS, SIGN_OF_LIFE, SLOT_SECONDS
from coldstart.effects import Effect
from coldstart.events import AttemptEvent, Event
from coldstart.messages import Accept, Done, Doubt, Hello, Message, Offer, Progress, Refusal, encode
from coldstart.plan import Chunks
from coldstart.policies import Here, heard
from coldstart.ports import Admission, Advert, Claim, ClaimOutcome, Conflicted, Deferred, Elected, Granted, Stated
from coldstart.testing.simulator.memory import Truth, content_of, digest_of
from coldstart.testing.simulator.movement import Movement, Pull, StorageRead
from coldstart.testing.simulator.store import LINEAGE, SHARD

if TYPE_CHECKING:
    from coldstart.testing.simulator.process import Process

TRANSPORTS = ("sim",)


class Transfer(msgspec.Struct, eq=False):
    """One claim of ours, as we remember it."""

    ident: str
    number: int
    source: Advert | None = None
    granted: bool = False
    waiting: bool = False
    over: bool = False
    inbox: str = ""
    early: list[tuple[str, AttemptEvent]] | None = []


class JoinerHands:
    """One process's joining; ``slot_seconds`` is how long a claim asks for its slot."""

    slot_seconds = SLOT_SECONDS

    def __init__(self, process: Process) -> None:
        self.process = process
        self.world = process.world
        self.truth: Truth | None = None
        self.published = False
        """Whether the store has had our truth."""
        self.stated: dict[int, int] = {}
        """Digests of single chunks that were stated before there was a truth."""
        self._unstated: dict[int, None] = {}
        self._stating = False
        self.leading = False
        self.transfers: dict[int, Transfer] = {}
        self.movements: dict[int, Movement] = {}
        self.digests: dict[int, int] = {}
        self._given_up: set[int] = set()
        self.wronged: list[str] = []
        """Incarnations that gave us wrong bytes."""
        self.received = 0
        """The best rate at which our chunks came from a peer."""

    # ---------------------------------------------------------------------------- claims, letters

    def claim(self, effect: effects.ClaimSource) -> None:
        process, luck, attempt = self.process, self.world.heap.luck, effect.attempt
        transfer = self.transfers.get(attempt)
        if transfer is None:
            transfer = self.transfers[attempt] = Transfer(f"{process.inbox}.{attempt}", luck.getrandbits(62))
        hello = Hello(
            transfer=transfer.ident,
            joiner=process.inbox,
            number=transfer.number,
            layout=LINEAGE,
            transports=TRANSPORTS,
        )
        claim = Claim(
            shard=SHARD,
            layout=LINEAGE,
            worker=process.name,
            transfer=transfer.ident,
            hello=encode(hello),
            exclude=(process.name, *effect.exclude),
            transports=TRANSPORTS,
            slot_seconds=self.slot_seconds,
            lead_seconds=LEAD_SECONDS if effect.part < 0 else 0.0,
            luck=luck.getrandbits(31),
            have=effect.have,
            inbox=process.inbox,
            queue_seconds=QUEUE_SECONDS,
            share_seconds=effect.share,
            crowd=effect.crowd,
            part=effect.part,
        )
        store, policy = self.world.store, self.world.scenario.prefer

        def failed(reason: str) -> None:
            process.post(events.ClaimFailed(attempt, reason))

        def ask(claim: Claim) -> None:
            store.call(process, lambda: store.ledger.claim(claim), partial(self._claimed, attempt), failed)

        if policy is None:
            ask(claim)
            return
        here = Here(process.name, have=effect.have)

        def choose(adverts: tuple[Advert, ...]) -> None:
            ask(msgspec.structs.replace(claim, prefer=heard(policy, here, adverts)))

        store.call(process, lambda: store.ledger.adverts(SHARD), choose, failed)

    def _claimed(self, attempt: int, outcome: ClaimOutcome) -> None:
        transfer = self.transfers[attempt]
        transfer.waiting = isinstance(outcome, Deferred)
        match outcome:
            case Granted():
                if transfer.granted:
                    return
                self._take(transfer, attempt, outcome)
            case Elected():
                self.leading = True
                self.process.post(events.LoaderElected(attempt, outcome.root))
            case Deferred():
                rate = self.world.scenario.link_known
                self.process.post(
                    events.ClaimDeferred(attempt, outcome.leader, queue=outcome.queue, rate=rate)
                )
            case Conflicted():
                self.process.post(events.TruthDisputed(attempt, outcome.roots))
        early, transfer.early = transfer.early or (), [] if transfer.waiting else None
        for source, event in early:
            self._hear(transfer, source, event)

    def granted(self, ident: str, outcome: Granted) -> None:
        """The store's letter: a claim that stood in line has got a source."""
        for attempt, transfer in self.transfers.items():
            if transfer.ident == ident and not transfer.granted:
                transfer.waiting = False
                self._take(transfer, attempt, outcome)
                early, transfer.early = transfer.early or (), None
                for source, event in early:
                    self._hear(transfer, source, event)

    def _take(self, transfer: Transfer, attempt: int, outcome: Granted) -> None:
        transfer.source, transfer.inbox, transfer.granted = outcome.source, outcome.source.inbox, True
        rate = self.world.scenario.link_known
        self.process.post(
            events.SourceClaimed(attempt, outcome.source, outcome.root, part=outcome.part, rate=rate)
        )

    def offered(self, message: Offer) -> None:
        """A source's yes."""
        attempt = self._meant(message)
        if attempt is not None:
            have = _chunks(message.have)
            offer = events.OfferReceived(attempt, message.transport, message.ticket, message.number, have)
            self._answered(message.source, offer)

    def progressed(self, message: Progress) -> None:
        """A source has more, or shows that it lives."""
        attempt = self._meant(message)
        if attempt is not None:
            self._answered(message.source, events.SourceProgressed(attempt, _chunks(message.have)))

    def refused(self, message: Refusal) -> None:
        """A source's no."""
        attempt = self._meant(message)
        if attempt is not None:
            self._answered(message.source, events.OfferRefused(attempt, message.reason))

    def _meant(self, message: Offer | Progress | Refusal) -> int | None:
        """The attempt that a letter proves to mean."""
        for attempt, transfer in self.transfers.items():
            if transfer.ident == message.transfer and message.answer == transfer.number + 1:
                return attempt
        return None

    def _answered(self, source: str, event: AttemptEvent) -> None:
        transfer = self.transfers[event.attempt]
        if transfer.early is None:
            self._hear(transfer, source, event)
        else:
            transfer.early.append((source, event))

    def _hear(self, transfer: Transfer, source: str, event: AttemptEvent) -> None:
        """From another source it means another grant than ours."""
        if source == transfer.inbox:
            self.process.post(event)

    def send(self, inbox: str, message: Accept, nonce: str) -> None:
        """Post a letter; nobody waits for it."""
        store, body = self.world.store, encode(message)
        store.tell(self.process, lambda: store.ledger.send(SHARD, inbox, body, nonce))

    def show_life(self, effect: effects.ShowLife) -> None:
        """Accept the offer, and again until the slot is given back."""
        transfer, (inbox, number) = self.transfers[effect.attempt], (effect.source.inbox, effect.number)
        first = partial(self._show_life, transfer, inbox, number, 0)
        self.world.heap.after(FIRST_SIGN, self.process.when_awake, first)

    def _show_life(self, transfer: Transfer, inbox: str, number: int, count: int) -> None:
        if not transfer.over:
            self.send(inbox, Accept(transfer=transfer.ident, answer=number + 1), f"{transfer.ident}.{count}")
            again = partial(self._show_life, transfer, inbox, number, count + 1)
            self.world.heap.after(SIGN_OF_LIFE, self.process.when_awake, again)

    def release(self, effect: effects.Release) -> None:
        self._release(effect.attempt, effect.outcome, _ignore, _ignore)

    def _release(
        self, attempt: int, outcome: str, done: Callable[[Advert | None], None], failed: Callable[[str], None]
    ) -> None:
        transfer = self.transfers.get(attempt)
        if transfer is None or not (transfer.source or transfer.waiting):
            done(None)
            return
        source = transfer.source.worker if transfer.source is not None else ""
        transfer.source, transfer.waiting, transfer.over = None, False, True
        body = encode(Done(transfer=transfer.ident, outcome=outcome[:512]))
        self.give_back(source, transfer.ident, body, done, failed)

    def give_back(
        self,
        source: str,
        transfer: str,
        letter: bytes,
        done: Callable[[Advert | None], None],
        failed: Callable[[str], None],
    ) -> None:
        """The slot is free for others, and the source knows."""
        store = self.world.store
        store.call(self.process, lambda: store.ledger.release(SHARD, source, transfer, letter), done, failed)

    def strike(self, effect: effects.Strike) -> None:
        store, source = self.world.store, effect.source
        self.wronged.append(source.inbox)
        letter = encode(Doubt(transfer=self.transfers[effect.attempt].ident, chunk=effect.chunk))
        store.tell(
            self.process,
            lambda: store.ledger.strike(SHARD, source.worker, source.incarnation, source.proof, letter),
        )

    # ------------------------------------------------------------------------------------- truth

    def fetch_truth(self, effect: effects.FetchTruth) -> None:
        attempt = effect.attempt
        self._with_truth(
            effect.root,
            lambda truth: self.process.post(events.TruthReceived(attempt)),
            lambda reason: self.process.post(events.TruthMissed(attempt, reason)),
        )

    def _with_truth(self, root: str, done: Callable[[Truth], None], failed: Callable[[str], None]) -> None:
        if self.truth is not None and self.truth.root == root:
            done(self.truth)
            return

        def fetched(record: bytes | None) -> None:
            truth = self.world.checkpoint.decoded(record) if record is not None else None
            if truth is None or truth.root != root:
                failed("the truth is announced but missing")
                return
            self.truth, self.published = truth, True
            done(truth)

        store = self.world.store
        store.call(self.process, lambda: store.ledger.fetch_truth(SHARD, LINEAGE), fetched, failed)

    def expected(self, chunk: int) -> int | None:
        """The digest that a chunk must have, if anybody knows it."""
        return self.truth.digests[chunk] if self.truth is not None else self.stated.get(chunk)

    def _learn(self, chunks: Chunks, done: Callable[[], None], failed: Callable[[str], None]) -> None:
        """Find out what is known of ``chunks`` by now."""
        first = next((chunk for chunk in chunks if chunk not in self.stated), -1)
        if self.truth is not None or first < 0:
            done()
            return

        def heard(stated: Stated) -> None:
            if stated.root:
                self._with_truth(stated.root, lambda truth: done(), failed)
            else:
                self.stated.update({chunk: content_of(digest) for chunk, digest in stated.digests.items()})
                done()

        store = self.world.store
        store.call(self.process, lambda: store.ledger.stated(SHARD, LINEAGE, first), heard, failed)

    def state(self, effect: effects.StateDigests) -> None:
        """State what we have read; one call for all that come while another is on its way."""
        self._unstated.update(dict.fromkeys(effect.chunks))
        if not self._stating:
            self._state_now(effect.attempt)

    def _state_now(self, attempt: int) -> None:
        chunks, self._unstated = self._unstated, {}
        self._stating = bool(chunks)
        if not chunks:
            return
        digests = {chunk: digest_of(self.digests[chunk]) for chunk in chunks}

        def stated(right: bool) -> None:
            if right:
                self.stated.update({chunk: self.digests[chunk] for chunk in chunks})
            event = events.DigestsStated(attempt, Chunks.of(chunks)) if right else None
            self.process.post(event or events.StatementRefused(attempt, "another reader has stated other digests"))
            self._state_now(attempt)

        store = self.world.store
        store.call(
            self.process,
            lambda: store.ledger.state(SHARD, LINEAGE, digests),
            stated,
            lambda reason: self._state_now(attempt),
        )

    def publish_truth(self, effect: effects.PublishTruth) -> None:
        attempt, process = effect.attempt, self.process
        self.truth = truth = self.world.checkpoint.truth(list(dict(sorted(self.digests.items())).values()))
        self.published = False

        def published(roots: tuple[str, ...]) -> None:
            self.published = roots == (truth.root,)
            event: Event = events.TruthPublished(attempt, truth.root)
            process.post(event if self.published else events.TruthConflicted(attempt, roots))

        self.publish(published, lambda reason: process.post(events.TruthUnpublished(attempt, reason)))

    def publish(self, done: Callable[[tuple[str, ...]], None], failed: Callable[[str], None]) -> None:
        """Tell the store the truth that we know."""
        store, truth = self.world.store, self.truth
        assert truth is not None
        store.call(
            self.process,
            lambda: store.ledger.publish_truth(SHARD, LINEAGE, truth.root, truth.record),
            done,
            failed,
        )

    # ------------------------------------------------------------------------------------- bytes

    def pull(self, effect: effects.Pull) -> None:
        self.world.promises.pulling(self.process, effect)
        attempt, process, unknown = effect.attempt, self.process, self.truth is None

        def failed(reason: str) -> None:
            process.post(events.PullEnded(attempt, reason, chunks=effect.chunks))

        def begin() -> None:
            if attempt in self._given_up:
                failed("abandoned")
                return
            if unknown and self.truth is not None:
                process.post(events.TruthReceived(attempt, self.truth.root))
            chunks = effect.chunks
            if self.truth is None:
                chunks = Chunks.of(chunk for chunk in chunks if chunk in self.stated)
            under_way = self.movements.get(attempt)
            if isinstance(under_way, Pull):
                under_way.extend(effect.chunks, chunks)
                return
            pull = self.movements[attempt] = Pull(process, effect, chunks)
            pull.begin()

        self._learn(effect.chunks, begin, failed)

    def read_storage(self, effect: effects.ReadStorage) -> None:
        self.world.storage_reads += 1
        self.world.loaders += effect.leading
        attempt = effect.attempt

        def begin(truth: Truth | None) -> None:
            read = StorageRead(self.process, attempt, effect.chunks, None if truth is None else truth.digests)
            self.movements[attempt] = read
            read.begin()

        def missed(reason: str) -> None:
            self.process.post(events.TruthMissed(attempt, reason))
            begin(None)

        if self.leading:
            self.keep_lead(attempt, -1)
        if effect.root:
            self._with_truth(effect.root, begin, missed)
        else:
            begin(None)

    def keep_lead(self, attempt: int, seen: int) -> None:
        """Renew the loader's lease while bytes land."""
        movement = self.movements.get(attempt)
        if not self.leading or self.process.ended:
            return
        landed = movement.landed if movement is not None else 0
        if landed > seen or not self.world.scenario.partial:
            self.lead(LEAD_SECONDS)
        again = partial(self.keep_lead, attempt, landed)
        self.world.heap.after(LEAD_SECONDS / 3, self.process.when_awake, again)

    def abandon(self, effect: effects.Abandon) -> None:
        movement = self.movements.get(effect.attempt)
        if movement is not None:
            movement.abandon()
        self._given_up.add(effect.attempt)

    def replace_memory(self, effect: effects.ReplaceMemory) -> None:
        """What is taken along is digested again, in memory that the late writer does not know."""
        old, fresh, kept = self.process.memory, self.world.checkpoint.empty(), Chunks()
        for chunk in effect.keep:
            fresh[chunk] = old[chunk]
            if fresh[chunk] == self.expected(chunk):
                kept = kept.add(chunk)
        self.process.memory = fresh
        self.process.post(events.MemoryReplaced(effect.attempt, kept))

    def verify(self, attempt: int, chunk: int, content: int, expected: int | None) -> None:
        """A chunk has landed whole: digest it, from the memory. Where nothing is expected, it is right."""
        self.digests[chunk] = content
        if expected is not None and expected != content:
            self.process.post(events.ChunkCorrupted(attempt, chunk))
        else:
            self.process.post(events.ChunkVerified(attempt, chunk))

    # ------------------------------------------------------------------------------------ the end

    def check(self, effect: effects.Check) -> None:
        attempt, source = effect.attempt, effect.source

        def passed(answer: object) -> None:
            self.process.post(events.CheckPassed(attempt))

        def released(now: Advert | None) -> None:
            if source is None or now is None or now.incarnation != source.incarnation:
                passed(now)
            elif now.generation != source.generation:
                self.process.post(events.SourceChanged(attempt, source.worker, "generation"))
            else:
                passed(now)

        if source is None:
            passed(None)
        else:
            self._release(attempt, "ok", released, passed)

    def resign(self, effect: effects.Resign | None = None) -> None:
        """Give up the loader's lease."""
        if self.leading:
            self.leading = False
            self.lead(0.0)

    def lead(self, seconds: float) -> None:
        """Hold the loader's lease for so long, or give it up."""
        store, name = self.world.store, self.process.name
        store.tell(self.process, lambda: store.ledger.lead(SHARD, LINEAGE, name, seconds))

    def admit(self, effect: effects.Admit) -> None:
        """Ask the store whether we may read storage beside others."""
        store, process, attempt = self.world.store, self.process, effect.attempt

        def answered(answer: Admission) -> None:
            kind = events.StorageOpened if answer.admitted else events.StorageRefused
            process.post(kind(attempt, answer.readers))

        store.call(
            process,
            lambda: store.ledger.admit(SHARD, LINEAGE, process.name, effect.most, effect.seconds),
            answered,
            lambda reason: process.post(events.StorageRefused(attempt)),
        )

    def leave_storage(self, effect: effects.LeaveStorage) -> None:
        """Make room for others."""
        store, name = self.world.store, self.process.name
        store.tell(self.process, lambda: store.ledger.admit(SHARD, LINEAGE, name, 0, 0.0))

    def vote(self, effect: effects.Vote) -> None:
        """See :mod:`coldstart.testing.simulator.groups`."""
        assert self.process.votes is not None
        self.process.votes.vote(effect)

    def share(self, effect: effects.Share) -> None:
        self.process.post_to_source(events.ChunksShared(effect.have, effect.parts))

    def end_sharing(self, effect: effects.EndSharing) -> None:
        self.process.post_to_source(events.SharingEnded())

    def start_lending(self, effect: effects.StartLending) -> None:
        self.process.post_to_source(events.LendingStarted())

    def stop_lending(self, effect: effects.StopLending) -> None:
        self.process.post_to_source(events.DrainRequested())


def _chunks(bits: bytes | None) -> Chunks | None:
    return None if bits is None else Chunks.decoded(bits)


def _ignore(answer: object) -> None:
    return


JOINER_HANDS: Mapping[type[Effect], Callable[..., None]] = {
    effects.ClaimSource: JoinerHands.claim,
    effects.FetchTruth: JoinerHands.fetch_truth,
    effects.ShowLife: JoinerHands.show_life,
    effects.Pull: JoinerHands.pull,
    effects.StateDigests: JoinerHands.state,
    effects.Share: JoinerHands.share,
    effects.EndSharing: JoinerHands.end_sharing,
    effects.ReadStorage: JoinerHands.read_storage,
    effects.Abandon: JoinerHands.abandon,
    effects.Release: JoinerHands.release,
    effects.Strike: JoinerHands.strike,
    effects.PublishTruth: JoinerHands.publish_truth,
    effects.Check: JoinerHands.check,
    effects.ReplaceMemory: JoinerHands.replace_memory,
    effects.Admit: JoinerHands.admit,
    effects.LeaveStorage: JoinerHands.leave_storage,
    effects.Resign: JoinerHands.resign,
    effects.Vote: JoinerHands.vote,
    effects.StartLending: JoinerHands.start_lending,
    effects.StopLending: JoinerHands.stop_lending,
}
"""What performs each effect: ``JOINER_HANDS[type(effect)](hands, effect)``. One table for all processes."""

JOINER_LETTERS: Mapping[type[Message], Callable[..., None]] = {
    Offer: JoinerHands.offered,
    Progress: JoinerHands.progressed,
    Refusal: JoinerHands.refused,
}
"""What takes each letter that is for the joiner."""
